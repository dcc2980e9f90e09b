"""TLS in front of a server that has none, as a load balancer or stunnel puts it there."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path


class TlsProxy:
    """Takes TLS on a free loopback port with the certificate it is given, and speaks plainly to ``target_port``."""

    def __init__(self, target_port: int, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.num_handshakes = 0
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TlsProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        _close(*list(self._sockets))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, plain: socket.socket) -> None:
        try:
            client = self._context.wrap_socket(plain, server_side=True)
        except OSError:  # the client does not trust us
            plain.close()
            return
        self.num_handshakes += 1
        server = socket.create_connection(("127.0.0.1", self._target_port), 5)
        server.settimeout(None)
        pair = (client, server)
        self._sockets.update(pair)
        threading.Thread(target=_pump, args=(server, client), daemon=True).start()
        _pump(client, server)
        self._sockets.difference_update(pair)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _close(source, target)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
