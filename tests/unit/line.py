"""A line to a server on this machine, which can be cut."""

from __future__ import annotations

import socket
import socketserver
import threading


class Line(socketserver.ThreadingTCPServer):
    """Passes bytes on to a port of 127.0.0.1 and back, on a port of its own."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.far = port
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.sent = 0
        """Bytes of answers that came through."""
        self.connections = 0
        self.silent = False
        """Whether connections are taken and nothing is answered."""
        self._left: int | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def cut(self, after: int = 0) -> None:
        """After so many bytes more of answers, this and each later connection is closed."""
        self._left = after

    def mend(self) -> None:
        self._left, self.silent = None, False

    def passed(self, answer: bytes) -> bytes:
        """What of an answer comes through; b"" when the line is cut."""
        with self._lock:
            through = answer if self._left is None else answer[: self._left]
            if self._left is not None:
                self._left -= len(through)
            self.sent += len(through)
        return through

    @property
    def is_cut(self) -> bool:
        return self._left == 0


class _Connection(socketserver.BaseRequestHandler):
    server: Line

    def handle(self) -> None:
        self.server.connections += 1
        if self.server.is_cut:
            return
        if self.server.silent:
            while self.request.recv(1 << 16):
                pass
            return
        with socket.create_connection(("127.0.0.1", self.server.far)) as far:
            threading.Thread(target=self._ask, args=(far,), daemon=True).start()
            try:
                while through := self.server.passed(far.recv(1 << 12)):
                    self.request.sendall(through)
            except OSError:
                pass  # whoever asked has gone

    def _ask(self, far: socket.socket) -> None:
        try:
            while question := self.request.recv(1 << 16):
                far.sendall(question)
            far.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the answer is over
