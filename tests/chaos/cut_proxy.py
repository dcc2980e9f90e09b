"""A TCP proxy whose cable can be cut: connections break, or, worse, hang."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

Cut = Literal["broken", "hanging", "lost"]


class CutProxy:
    """Forwards a free loopback port to ``target_port`` of loopback while the cable is whole."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._whole = threading.Event()
        self._whole.set()
        self._lost: set[socket.socket] = set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, how: Cut) -> None:
        """New connections wait until ``mend``; old ones break, fall silent until then, or are silent for ever after.

        The last is what a firewall does that has forgotten its connections: no packet says that they are gone.
        """
        self._whole.clear()
        for pair in list(self._pairs):
            if how == "broken":
                _close(pair)
            if how == "lost":
                self._lost.update(pair)

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._listener.close()
        for pair in list(self._pairs):
            _close(pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._whole.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port), 5)
        except OSError:
            client.close()
            return
        pair = (client, server)
        self._pairs.add(pair)
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        _close(pair)
        back.join()
        self._pairs.discard(pair)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._whole.wait()
                if source not in self._lost:
                    target.sendall(data)
        _close((source, target))


def _close(pair: tuple[socket.socket, socket.socket]) -> None:
    for each in pair:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
