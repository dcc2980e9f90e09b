"""A way to a server that carries only so many bytes a second: a network, where the server is on the same machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit

_READ_BYTES = 1 << 16


class Throttle:
    """Forwards TCP connections; all bytes towards the server together stay below ``bytes_a_second``."""

    def __init__(self, endpoint: str, bytes_a_second: float) -> None:
        target = urlsplit(endpoint)
        self._target = (target.hostname or "127.0.0.1", target.port or 80)
        self._rate, self._free_at, self._lock = bytes_a_second, 0.0, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Throttle:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=self._carry, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_slow: bool) -> None:
        try:
            while data := source.recv(_READ_BYTES):
                if is_slow:
                    self._wait_for(len(data))
                target.sendall(data)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _wait_for(self, num_bytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + num_bytes / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
