"""A proxy in front of a real S3 server that can be told to fail: what a healthy server cannot be made to do."""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_BUSY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
_NOT_IMPLEMENTED = b"<Error><Code>NotImplemented</Code><Message>A header you provided is unknown.</Message></Error>"
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(slots=True)
class Faults:
    """What goes wrong now.

    Attributes:
        busy_until: before this time (``time.monotonic``) every request is answered with 503.
        ignore_conditions: the object is removed before a conditional PUT, as if If-None-Match were ignored.
        refuse_conditions: a conditional request is answered with 501.
        hide_checksums: no answer carries a checksum header.
        flip_uploads: so many bodies of PUTs lose a bit on the way, their checksum header kept.
        cut_downloads: so many bodies of GETs break off in the middle.
    """

    busy_until: float = 0.0
    ignore_conditions: bool = False
    hide_checksums: bool = False
    refuse_conditions: bool = False
    flip_uploads: int = 0
    cut_downloads: int = 0
    num_requests: int = 0
    num_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def busy_for(self, seconds: float) -> None:
        self.busy_until = time.monotonic() + seconds

    def take(self, name: str) -> bool:
        """Whether one more fault of this kind is due."""
        with self.lock:
            left = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return bool(left > 0)


class FaultProxy:
    """Forwards to ``endpoint``; ``client`` (boto3) removes objects for ``ignore_conditions``."""

    def __init__(self, endpoint: str, client: Any) -> None:
        self.faults = Faults()
        target = urlsplit(endpoint)

        class Handler(_Handler):
            faults, host, port, s3 = self.faults, target.hostname or "", target.port or 80, client

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    host: str
    port: int
    s3: Any

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._forward()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _forward(self) -> None:
        body = self._body()
        self.faults.num_requests += 1
        if time.monotonic() < self.faults.busy_until:
            self.faults.num_busy += 1
            self._answer(503, [("Content-Type", "application/xml")], _BUSY)
            return
        if self.command == "PUT" and len(body) > 1000 and self.faults.take("flip_uploads"):
            body = bytes([*body[:500], body[500] ^ 1]) + body[501:]
        if self.faults.refuse_conditions and self.headers.get("If-None-Match"):
            self._answer(501, [("Content-Type", "application/xml")], _NOT_IMPLEMENTED)
            return
        if self.faults.ignore_conditions and self.headers.get("If-None-Match"):
            bucket, _, key = urlsplit(self.path).path.lstrip("/").partition("/")
            self.s3.delete_object(Bucket=bucket, Key=key)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read(), answer.getheader("Content-Length"))
        finally:
            connection.close()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            hidden = self.faults.hide_checksums and "checksum" in name.lower()
            if name.lower() not in _HOP_BY_HOP and not hidden:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.command == "GET" and len(body) > 1000 and self.faults.take("cut_downloads"):
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.wfile.write(body)
