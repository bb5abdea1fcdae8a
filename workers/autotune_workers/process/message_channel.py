"""The owner's end of the channel to a process. Exchanges messages of `gang.wire` without waiting
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
"""largest number of chunks that one `receive` reads"""


@final
class MessageChannel:
    """The owner's end of a pair of connected sockets; the process has the other."""

    def __init__(self, ours: socket.socket, *, send_timeout_s: float) -> None:
        """`ours`: closed with the channel. `send_timeout_s`: longest time that `send` waits if the
        process does not read."""
        self._ours = ours
        self._ours.setblocking(False)
        self._sender = self._ours.dup()
        self._sender.settimeout(send_timeout_s)
        self._lines = Lines()

    def fileno(self) -> int:
        """For selectors: readable if there are messages or the process is gone; -1 after the end of
        the channel."""
        return self._ours.fileno()

    @property
    def is_open(self) -> bool:
        """Whether messages may still arrive."""
        return self._ours.fileno() >= 0

    def send(self, message: Message) -> None:
        """Sends a message. If the process is gone, the message is lost; `receive` then closes the
        channel."""
        with contextlib.suppress(OSError):
            self._sender.sendall(to_line(message))

    def receive(self) -> list[Message]:
        """The messages that have arrived, at most `MOST_CHUNKS` chunks, so that a fast sender
        cannot block the caller. Closes this direction when the process has closed its end. Raises
        `ValueError` for malformed messages."""
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
        """Closes the receiving direction."""
        self._ours.close()

    def close(self) -> None:
        """Closes both directions."""
        self._ours.close()
        self._sender.close()
