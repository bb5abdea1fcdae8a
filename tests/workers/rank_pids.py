"""Process numbers of a local runner's ranks, for tests that count, watch or kill them."""

from __future__ import annotations

from typing import Any

from autotune_workers.runners.local import LocalRunner


def rank_pids(runner: LocalRunner) -> tuple[int, ...]:
    """Of all ranks whose process has started."""
    pools: Any = runner._pools
    return tuple(rank.pid for rank in pools._ranks.values() if rank.pid)
