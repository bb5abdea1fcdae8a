"""A rank that fails while it starts says why: its runner does not kill it first, and takes its own
kill for no one else's."""

from __future__ import annotations

import time
from contextlib import closing

from autotune.spec import FailureKind
from autotune_workers.gang.failure_kind import of_death
from autotune_workers.process.rank_processes import RankProcess, RankStarter


def test_a_rank_that_cannot_start_ends_with_the_exception_and_is_no_lost_worker() -> None:
    # a rank on a GPU is a process of its own
    starter = RankStarter(device="cuda", trial="no_such_module:trial")
    with closing(starter), closing(RankProcess(starter, name="rank-0")) as rank:
        messages: list[dict[str, object]] = []
        end_s = time.monotonic() + 900
        while not messages and time.monotonic() < end_s:
            messages = rank.receive()
            time.sleep(0.05)
        (gone,) = messages
        assert (gone["event"], gone["code"], gone["why"]) == ("gone", 1, "")
        evidence = of_death(rank=0, code=1, log_tail=rank.log_tail())
        assert evidence.kind is FailureKind.ERROR
        assert evidence.exception == "ModuleNotFoundError: No module named 'no_such_module'"
