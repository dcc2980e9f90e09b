"""compose.yaml by the specification's schema, and as ``eaglefeed run`` reads it; no secret on a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from eaglefeed.errors import UsageError
from local.compose_file import _interpolated, interpolate, read_services
from local.stack import CHECKOUT, COMPOSE_FILE, PROGRAMS, in_order

SECRETS = {
    "REDIS_PASSWORD": "planted-redis",
    "AWS_ACCESS_KEY_ID": "planted-id",
    "AWS_SECRET_ACCESS_KEY": "planted-key",
    "EAGLEFEED_DASHBOARD_TOKEN": "planted-token",
}


def document() -> Any:
    return yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))


NAMES = tuple(document()["services"])


def schema() -> Any:
    """The compose specification's own, as the package check-jsonschema carries and renews it."""
    file = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    return json.loads(file.read_text("utf-8"))


def misspell(key: str) -> Callable[[Any], None]:
    def change(service: Any) -> None:
        service[f"{key}s"] = service.pop(key)

    return change


def test_it_is_valid_by_the_specifications_schema() -> None:
    """As it stands, and with the variables put in as `docker compose` does before it validates."""
    jsonschema.validate(document(), schema())
    jsonschema.validate(_interpolated(document(), SECRETS, COMPOSE_FILE), schema())


@pytest.mark.parametrize(
    "change",
    [
        misspell("healthcheck"),
        misspell("restart"),
        lambda service: service["healthcheck"].update(interval=2),
        lambda service: service.update(depends_on={"redis": {"condition": "is_healthy"}}),
        lambda service: service.update(ports=[{"target": "8080", "publishes": 1}]),
        lambda service: service["deploy"]["resources"]["limits"].update(ram="6g"),
    ],
)
def test_the_schema_would_find_a_mistake(change: Callable[[Any], None]) -> None:
    """A misspelt key and a value of the wrong kind, each, in a service."""
    wrong = document()
    change(wrong["services"]["redis"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema())


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


@pytest.mark.parametrize("name", [name for name in NAMES if "healthcheck" in document()["services"][name]])
def test_every_health_check_can_be_run(name: str) -> None:
    """Its program is found and says that nobody answers yet, within its own timeout; no traceback, no "not found"."""
    ports = {f"{each}_PORT": "1" for each in ("REDIS", "S3", "ENGINE", "DASHBOARD")}
    check = read_services(COMPOSE_FILE, (name,), SECRETS | ports)[name].health_check
    assert check is not None
    path = os.pathsep.join([str(PROGRAMS), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(
        check.command, env=environment, capture_output=True, text=True, timeout=check.timeout_seconds + 20, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "")


def test_services_that_others_wait_for_have_a_health_check() -> None:
    """`condition: service_healthy` of a service without one would never come true."""
    services = document()["services"]
    needed = {need for service in services.values() for need in service.get("depends_on", {})}
    assert needed and all("healthcheck" in services[name] for name in needed)


def test_nothing_is_published_beyond_loopback() -> None:
    """Ports that leave the compose network are bound to 127.0.0.1."""
    ports = [port for service in document()["services"].values() for port in service.get("ports", [])]
    assert ports and all(str(port).startswith("127.0.0.1:") for port in ports)
