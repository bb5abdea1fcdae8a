"""Load of this process's machine (Linux): processor time of this training's and of other processes,
usable cores, TCP connections to other nodes."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any

from .versions import text_of

MOST_OTHERS = 40
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def usable_cores(root: str = "/") -> int:
    """Number of cores that this process may use: its affinity, limited by the tightest CPU quota of
    its control groups, rounded up. Same as in `autotune.detect`, which the program's Python may not
    have. `root`: the folder with /proc and /sys."""
    cores = len(os.sched_getaffinity(0))
    for line in text_of(os.path.join(root, "proc/self/cgroup")).splitlines():
        controllers, path = [*line.split(":", 2), "", ""][1:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        folder = os.path.join(root, "sys/fs/cgroup", "cpu" if controllers else "")
        for part in ("", *(part for part in path.split("/") if part not in ("", ".."))):
            folder = os.path.join(folder, part)
            texts = [text_of(os.path.join(folder, file)) for file in files]
            quota_us, period_us = [*" ".join(texts).split(), "", ""][:2]
            if quota_us.isdigit() and period_us.isdigit() and int(quota_us) and int(period_us):
                cores = min(cores, -(-int(quota_us) // int(period_us)))
    return cores


class NodeLoad:
    """Processor seconds since the first reading: of all processes of the machine, of this
    training's, and of other visible ones. Time taken by a hypervisor is separate."""

    def __init__(self, root: int = 0) -> None:
        self._root = root
        self._first: dict[str, float] = {}
        self._last: dict[int, float] = {}
        self._ours_s = 0.0
        self._others: dict[str, float] = {}
        self.told: dict[str, Any] = {}
        """the last reading; empty before the first one"""

    def look(self) -> None:
        """Takes a reading."""
        with open("/proc/stat") as file:
            ticks = [int(value) for value in file.readline().split()[1:9]]
        now = {
            "at": time.monotonic(),
            "busy_s": (sum(ticks) - ticks[3] - ticks[4]) * _TICK_S,
            "stolen_s": ticks[7] * _TICK_S,
        }
        processes = _processes()
        family = _family(processes, self._root)
        for pid, (_, command, used_s) in processes.items():
            used_since_s = used_s - self._last.get(pid, used_s if not self._first else 0.0)
            if pid in family:
                self._ours_s += used_since_s
            elif used_since_s >= 0.05:
                name = f"{command} (process {pid})"
                if name in self._others or len(self._others) < MOST_OTHERS:
                    self._others[name] = self._others.get(name, 0.0) + used_since_s
        self._last = {pid: used_s for pid, (_, _, used_s) in processes.items()}
        self._first = self._first or now
        self.told = {
            **{name: round(now[name] - self._first[name], 3) for name in now},
            "ours_s": round(self._ours_s, 3),
            "cores": os.cpu_count() or 1,
            "others": {
                name: round(s, 2)
                for name, s in sorted(self._others.items(), key=lambda o: -o[1])[:5]
            },
        }


def _processes() -> dict[int, tuple[int, str, float]]:
    """(parent, command, processor seconds) of each visible process, by number."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        head, _, rest = text_of(f"/proc/{pid}/stat").rpartition(")")  # empty if it has ended
        fields = rest.split()
        if len(fields) > 13:
            used_s = (int(fields[11]) + int(fields[12])) * _TICK_S
            found[pid] = int(fields[1]), head.partition("(")[2], used_s
    return found


def _family(processes: dict[int, tuple[int, str, float]], root: int) -> set[int]:
    """Numbers of this training's processes: `root`, or else the process in AUTOTUNE_PROBE_ROOT,
    with its descendants."""
    root_variable = os.environ.get("AUTOTUNE_PROBE_ROOT", "")
    root = root or (int(root_variable) if root_variable.isdigit() else 0)
    family = {os.getpid(), root if root in processes else os.getpid()}
    while True:
        more = {pid for pid, (parent, _, _) in processes.items() if parent in family} - family
        if not more:
            return family
        family |= more


def links() -> list[dict[str, Any]]:
    """TCP connections from this network namespace to other addresses, by netlink socket diagnosis
    (sock_diag(7), tcp_info of tcp(7)); empty if unavailable."""
    try:
        return _tcp_info()
    except (OSError, AttributeError, ValueError):
        return []


def _tcp_info() -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 4) as netlink:
        netlink.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            # inet_diag_req_v2: family, protocol, requested INET_DIAG_INFO, padding, states:
            # established
            body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << 1, 1 << 1) + bytes(48)
            netlink.send(struct.pack("=IHHII", 16 + len(body), 20, 0x301, 1, 0) + body)
            is_open = True
            while is_open:
                data, offset = netlink.recv(1 << 16), 0
                while offset + 16 <= len(data):
                    length, kind = struct.unpack_from("=IH", data, offset)
                    if kind in (2, 3) or length < 16:  # an error, or the end
                        is_open = False
                        break
                    _add_link(found, family, data[offset + 16 : offset + length])
                    offset += (length + 3) & ~3
    return sorted(found.values(), key=lambda link: -link["sent_bytes"])[:32]


def _add_link(found: dict[tuple[str, str], dict[str, Any]], family: int, body: bytes) -> None:
    size = 4 if family == socket.AF_INET else 16
    local, remote = (
        socket.inet_ntop(family, body[offset : offset + size]).replace("::ffff:", "")
        for offset in (8, 24)
    )
    if local == remote or local.startswith("127.") or local == "::1":
        return
    queue = struct.unpack_from("=II", body, 56)[1]
    offset = 72
    while offset + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, offset)
        if length < 4:
            return
        if kind == 2 and length >= 4 + 232:  # tcp_info up to busy_time and what limits
            info = body[offset + 4 : offset + length]
            rtt_us = struct.unpack_from("=I", info, 68)[0]
            retransmitted = struct.unpack_from("=I", info, 100)[0]
            acknowledged_bytes = struct.unpack_from("=Q", info, 120)[0]
            min_rtt_us = struct.unpack_from("=I", info, 148)[0]
            busy_us = struct.unpack_from("=Q", info, 168)[0]
            link = found.setdefault(
                (local, remote),
                {"local": local, "remote": remote, "rtt_s": 0.0, "min_rtt_s": 1e9, "queued_bytes": 0, "resent": 0, "sent_bytes": 0, "busy_s": 0.0},
            )  # fmt: skip
            link["rtt_s"] = max(link["rtt_s"], rtt_us * 1e-6)
            link["min_rtt_s"] = min(link["min_rtt_s"], min_rtt_us * 1e-6)
            link["queued_bytes"] += queue
            link["resent"] += retransmitted
            link["sent_bytes"] += acknowledged_bytes
            link["busy_s"] += busy_us * 1e-6
        offset += (length + 3) & ~3
