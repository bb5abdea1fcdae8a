"""Which user of this machine has the other end of a loopback connection, as Linux lists its sockets (`/proc/net/tcp`, proc(5)).

Proxies and tunnels run as users of their own (nginx's workers as www-data): a request that they pass on without any sign of it still comes from their socket.
"""

from __future__ import annotations

import os
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, REMOTE, USER = 1, 2, 7
"""columns of these tables: HEXADDRESS:HEXPORT of both ends, and the user's number"""


def is_of_another_user(peer_port: int, own_port: int) -> bool:
    """Whether the socket from `peer_port` to `own_port` belongs to another user than this process. False where the machine does not tell."""
    users = {
        row[USER]
        for table in TABLES
        for row in _rows(table)
        if _port(row[LOCAL]) == peer_port and _port(row[REMOTE]) == own_port
    }
    return bool(users) and str(os.geteuid()) not in users


def _rows(table: Path) -> list[list[str]]:
    try:
        lines = table.read_text(encoding="ascii", errors="replace").splitlines()[1:]
    except OSError:
        return []
    return [row for row in map(str.split, lines) if len(row) > USER]


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)
