"""compose.yaml as ``eaglefeed run`` reads it: variables as the specification says, and no secret on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from eaglefeed.errors import UsageError
from local.compose_file import interpolate, read_services
from local.stack import COMPOSE_FILE, PROGRAMS, in_order

NAMES = tuple(yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))["services"])
SECRETS = {
    "REDIS_PASSWORD": "planted-redis",
    "AWS_ACCESS_KEY_ID": "planted-id",
    "AWS_SECRET_ACCESS_KEY": "planted-key",
    "EAGLEFEED_DASHBOARD_TOKEN": "planted-token",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$SET and ${SET}", "value and value"),
        ("${MISSING}|${EMPTY}", "|"),
        ("${MISSING-d} ${MISSING:-d} ${EMPTY-d} ${EMPTY:-d}", "d d  d"),
        ("${MISSING:-a${SET}b}", "avalueb"),
        ("${MISSING:-${ALSO:-${SET}}}", "value"),
        ("$$SET costs $$1", "$SET costs $1"),
        ("${SET:?needed}", "value"),
    ],
)
def test_variables_are_put_in(text: str, expected: str) -> None:
    """As the compose specification has it, nested defaults and doubled dollars too."""
    assert interpolate(text, {"SET": "value", "EMPTY": ""}) == expected


@pytest.mark.parametrize("text", ["${MISSING:?say it}", "${EMPTY:?say it}", "${MISSING?say it}"])
def test_a_required_variable_is_missed_with_its_own_words(text: str) -> None:
    """The message of ``${…:?message}`` is the error."""
    with pytest.raises(UsageError, match="say it"):
        interpolate(text, {"EMPTY": ""})


@pytest.mark.parametrize("text", ["${OPEN", "a $ alone", "${1}"])
def test_what_is_no_variable_is_refused(text: str) -> None:
    """A broken expression names itself."""
    with pytest.raises(UsageError):
        interpolate(text, {})


def test_no_secret_stands_on_a_command_line() -> None:
    """Commands and health checks can be read by every user of the host; environments only by their own."""
    for service in read_services(COMPOSE_FILE, NAMES, SECRETS).values():
        check = service.health_check.command if service.health_check else ()
        words = " ".join([*service.command, *check])
        assert not [secret for secret in SECRETS.values() if secret in words], service.name


def test_secrets_have_no_default() -> None:
    """Without them nothing starts, and the message names what to set."""
    for name in ("redis", "objectstore", "extract"):
        with pytest.raises(UsageError, match=r"set (REDIS_PASSWORD|AWS_ACCESS_KEY_ID)"):
            read_services(COMPOSE_FILE, (name,), {})


def test_services_come_after_what_they_need() -> None:
    """Whatever the order they are named in."""
    services = read_services(COMPOSE_FILE, ("store", "extract", "objectstore", "redis"), SECRETS)
    ordered = in_order(services)
    assert ordered.index("redis") < ordered.index("extract")
    assert max(ordered.index("redis"), ordered.index("objectstore")) < ordered.index("store")


def test_every_program_can_be_run_here() -> None:
    """Each service's program is in an environment's bin, or has a stand-in beside local/stack.py."""
    ours = {"eaglefeed", "rq", "weed", "sh"} | {path.name for path in PROGRAMS.iterdir()}
    services = read_services(COMPOSE_FILE, NAMES, SECRETS)
    assert {service.command[0] for service in services.values()} <= ours


def test_nothing_is_published_beyond_loopback() -> None:
    """Ports that leave the compose network are bound to 127.0.0.1."""
    document = yaml.safe_load(Path(COMPOSE_FILE).read_text("utf-8"))
    ports = [port for service in document["services"].values() for port in service.get("ports", [])]
    assert ports and all(str(port).startswith("127.0.0.1:") for port in ports)
