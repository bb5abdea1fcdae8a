"""The owner's end of the channel to a process: messages of `gang.wire` both ways, without waiting
for the other side.

One thread receives; others may send.
"""

from __future__ import annotations

import contextlib
import socket
from typing import final

from autotune_workers.gang.wire import Lines, Message, to_line

CHUNK_BYTES = 1 << 16
MOST_CHUNKS = 16
"""that one call takes"""


@final
class MessageChannel:
    """Our end of a pair of connected sockets, of which the process has the other."""

    def __init__(self, ours: socket.socket, *, send_timeout_s: float) -> None:
        """`ours`: closed with the channel; `send_timeout_s`: how long `send` waits for a process
        that does not read."""
        self._ours = ours
        self._ours.setblocking(False)
        self._sender = self._ours.dup()
        self._sender.settimeout(send_timeout_s)
        self._lines = Lines()

    def fileno(self) -> int:
        """For selectors: readable when there are messages or the process is gone; -1 once nothing
        more can come."""
        return self._ours.fileno()

    @property
    def is_open(self) -> bool:
        """Whether messages may still come."""
        return self._ours.fileno() >= 0

    def send(self, message: Message) -> None:
        """Sends a message; a process that is gone does not get it, which `receive` shows."""
        with contextlib.suppress(OSError):
            self._sender.sendall(to_line(message))

    def receive(self) -> list[Message]:
        """Messages that have arrived, or a part of them where there are many: a sender that never
        stops keeps nobody here. Closes this direction once the process has closed its end. Raises
        `ValueError` for what is no message."""
        messages: list[Message] = []
        for _ in range(MOST_CHUNKS):
            if not self.is_open:
                break
            try:
                chunk = self._ours.recv(CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self._ours.close()
                break
            messages += self._lines.feed(chunk)
        return messages

    def stop_receiving(self) -> None:
        """No more messages are wanted."""
        self._ours.close()

    def close(self) -> None:
        """Closes our end."""
        self._ours.close()
        self._sender.close()
