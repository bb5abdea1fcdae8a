"""Sends reports from other nodes to the first rank's folder, over a separate connection to the
store of the program's rendezvous.

    autotune/home       where the first rank reports; ranks with the same folder send nothing
    autotune/RANK/N     the N-th parcel of a rank: lines of JSON; removed by the first rank

Active if AUTOTUNE_PROBE_MIRROR=1. It runs in the probe's thread and never blocks the training.
"""

from __future__ import annotations

import os
import socket
from typing import Any

MOST_LINES = 4000
"""largest number of lines that wait to be sent"""
TIMEOUT_S = 5.0


class Mirror:
    """One process's connection to the store."""

    def __init__(self, torch: Any, reports: Any) -> None:
        self._torch, self._reports = torch, reports
        self._store: Any = None
        self._is_home: bool | None = None
        self._counts: dict[int, int] = {}
        self._sent = 0
        self._failed = 0
        self.is_on = os.environ.get("AUTOTUNE_PROBE_MIRROR") == "1"
        if self.is_on:
            reports.waiting = []

    def exchange(self) -> None:
        """Sends waiting lines; on the first rank, receives them."""
        distributed = self._torch.distributed
        if (
            not self.is_on
            or self._failed > 3
            or not (distributed.is_available() and distributed.is_initialized())
        ):
            return
        try:
            self._exchange(distributed.get_rank(), distributed.get_world_size())
        except Exception:  # the store is gone or too slow, which must not affect the program
            self._failed += 1

    def _exchange(self, rank: int, world: int) -> None:
        own_place = (socket.gethostname() + ":" + self._reports.folder).encode()
        if self._store is None:
            self._store = self._connected()
            if rank == 0:
                self._store.set("autotune/home", own_place)
        if rank == 0:
            self._reports.waiting = None
            for other in range(1, world):
                while self._store.check([_key(other, self._counts.get(other, 0))]):
                    key = _key(other, self._counts.get(other, 0))
                    self._reports.write(self._store.get(key))
                    self._store.delete_key(key)
                    self._counts[other] = self._counts.get(other, 0) + 1
            return
        if self._is_home is None and self._store.check(["autotune/home"]):
            self._is_home = self._store.get("autotune/home") == own_place
        if self._is_home is None:
            return
        lines, self._reports.waiting = self._reports.waiting or [], None if self._is_home else []
        if lines and not self._is_home:
            self._store.set(_key(rank, self._sent), b"".join(lines[-MOST_LINES:]))
            self._sent += 1

    def _connected(self) -> Any:
        from datetime import timedelta

        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        try:
            store = self._torch.distributed.distributed_c10d._get_default_store()
            while hasattr(store, "underlying_store"):
                store = store.underlying_store
            host, port = store.host, store.port
        except Exception:  # another kind of store, or another release
            pass
        return self._torch.distributed.TCPStore(
            host, int(port), None, False, timedelta(seconds=TIMEOUT_S), wait_for_workers=False
        )


def _key(rank: int, number: int) -> str:
    return f"autotune/{rank}/{number}"
