"""TLS to Redis and to the store with an authority of one's own: works from the URLs alone, and trusts nobody else."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from config import queues
from config.redis_faults import explained
from eaglefeed.checksum import path_checksum
from eaglefeed.errors import EnvironmentFault
from eaglefeed.manifest import manifest_prefix
from eaglefeed.stores import open_store
from local.service_checks import check_redis
from storage.run_choice import reachable_redis, required_redis
from tests.certificates import Authority
from tests.services import BUCKET
from tests.storage_home import StorageHome
from tests.tls_proxy import TlsProxy

PASSWORD = "a-password-of-nobody"


@dataclass(frozen=True, slots=True)
class Secured:
    """Redis and the store behind TLS: with certificates for this host, and with ones for another host."""

    ours: Authority
    foreign: Authority
    redis: TlsProxy
    store: TlsProxy
    misnamed_redis: TlsProxy
    misnamed_store: TlsProxy

    def redis_url(self, authority: Authority | None, proxy: TlsProxy | None = None, password: str = "") -> str:
        query = f"?ssl_ca_certs={authority.certificate}" if authority else ""
        return f"rediss://{password}127.0.0.1:{(proxy or self.redis).port}/0{query}"

    def store_environment(self, authority: Authority, proxy: TlsProxy | None = None) -> dict[str, str]:
        endpoint = f"https://127.0.0.1:{(proxy or self.store).port}"
        return {"S3_ENDPOINT": endpoint, "AWS_CA_BUNDLE": str(authority.certificate)}


@pytest.fixture
def secured(tmp_path: Path, valkey: str, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    ours, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "foreign")
    ports = [int(urlsplit(url).port or 0) for url in (valkey, seaweed["S3_ENDPOINT"])]
    with ExitStack() as stack:
        made = [
            stack.enter_context(TlsProxy(port, *ours.issue(host)))
            for host in ("127.0.0.1", "elsewhere.example")
            for port in ports
        ]
        yield Secured(ours, foreign, *made)


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_redis_and_the_store_over_tls(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are used as without it: a transaction, an upload with its checksum, a create-only object, a range."""
    redis = queues.connect(secured.redis_url(secured.ours))
    key = f"tls-{secrets.token_hex(4)}"
    assert redis.pipeline().set(key, b"1", ex=60).incr(key).execute() == [True, 2]
    redis.close()
    use(monkeypatch, secured.store_environment(secured.ours))
    store = open_store(f"s3://{BUCKET}/{key}")
    assert "honours" in store.check()
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * 4096)
    store.put_file("shard", path, path_checksum(path), create_only=True)
    assert store.get_range("shard", 254, 258) == b"\xfe\xff\x00\x01"
    assert store.create("manifest", b"{}") and not store.create("manifest", b"[]")
    assert secured.redis.num_handshakes and secured.store.num_handshakes


def test_a_worker_stores_a_batch_over_tls(secured: Secured, tmp_path: Path, valkey: str) -> None:
    """`rq worker` with nothing but the two URLs and AWS_CA_BUNDLE: the batch is stored, and its dumps are gone."""
    run = f"run-{secrets.token_hex(4)}"
    home = StorageHome.make(tmp_path, run, valkey, f"s3://{BUCKET}/tls")
    url = secured.redis_url(secured.ours)
    own = {"REDIS_URL": url, "RQ_REDIS_URL": url, **secured.store_environment(secured.ours)}
    over_tls = replace(home, environment={**home.environment, **own})
    batch = home.batch([30, 40])
    home.announce(batch)
    home.enqueue(batch, home.write_dumps(batch))
    log = tmp_path / "worker.log"
    assert over_tls.start_worker("--burst", log=log).wait(60) == 0, log.read_text()
    assert len(list(home.store().list(manifest_prefix(run)))) == 1 and home.waiting() == []
    audit = over_tls.eaglefeed("audit", "--deep", "--quiet")
    assert audit.returncode == 0, audit.stderr


@pytest.mark.parametrize("kind", ["unknown authority", "no authority named", "another host's certificate"])
def test_a_redis_that_cannot_be_trusted_is_refused(secured: Secured, kind: str) -> None:
    """Nothing is sent to it, the password included; the message says what to put into the URL, and not the password."""
    authority = {"unknown authority": secured.foreign, "another host's certificate": secured.ours}.get(kind)
    proxy = secured.misnamed_redis if "host" in kind else secured.redis
    url = secured.redis_url(authority, proxy, password=f":{PASSWORD}@")
    with pytest.raises(EnvironmentFault, match="ssl_ca_certs=") as caught:
        required_redis(url)
    assert "certificate is refused" in str(caught.value) and PASSWORD not in str(caught.value)
    assert proxy.num_handshakes == 0
    (finding,) = check_redis(url)
    assert "certificate is refused" in finding.fact and "ssl_ca_certs" in finding.advice


def test_a_worker_does_not_begin_with_a_redis_that_it_cannot_trust(
    secured: Secured, tmp_path: Path, valkey: str
) -> None:
    """It ends at once, with the certificate in RQ's own sentence and nothing sent; waiting would mend nothing."""
    home = StorageHome.make(tmp_path, "untrusted", valkey)
    url = secured.redis_url(secured.foreign)
    untrusting = replace(home, environment={**home.environment, "REDIS_URL": url, "RQ_REDIS_URL": url})
    log = tmp_path / "worker.log"
    assert untrusting.start_worker("--burst", log=log).wait(60) == 1, log.read_text()
    assert "certificate verify failed" in log.read_text() and "Traceback" not in log.read_text()
    assert secured.redis.num_handshakes == 0


@pytest.mark.parametrize("kind", ["unknown authority", "another host's certificate"])
def test_a_store_that_cannot_be_trusted_is_refused(
    secured: Secured, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the environment, not one to retry: the message names AWS_CA_BUNDLE and S3_ENDPOINT."""
    is_foreign = kind == "unknown authority"
    authority, proxy = (secured.foreign, secured.store) if is_foreign else (secured.ours, secured.misnamed_store)
    use(monkeypatch, secured.store_environment(authority, proxy))
    with pytest.raises(EnvironmentFault, match="AWS_CA_BUNDLE") as caught:
        open_store(f"s3://{BUCKET}/tls").check()
    assert "certificate is refused" in str(caught.value) and "S3_ENDPOINT" in str(caught.value)


def test_a_server_without_tls_is_told_from_one_that_is_away(
    secured: Secured, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """https:// to a plain port says so; an authority's file that is not there is named."""
    plain = seaweed["S3_ENDPOINT"].replace("http://", "https://")
    use(monkeypatch, {"S3_ENDPOINT": plain, "AWS_CA_BUNDLE": str(secured.ours.certificate)})
    with pytest.raises(EnvironmentFault, match="does not speak TLS"):
        open_store(f"s3://{BUCKET}/tls").check()
    missing = secured.redis_url(secured.ours).replace("authority.pem", "no-such.pem")
    redis, reason = reachable_redis(missing)
    assert redis is None and "ssl_ca_certs" in reason and "not there" in reason
    assert "does not answer" in explained(ConnectionError("refused"), secured.redis_url(None))
