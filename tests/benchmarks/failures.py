"""How long a failure of one of two ranks takes to be told, with collectives that block for ever
when a peer has failed, as NCCL's do.

python -m tests.benchmarks.failures      a line for each fault: kind and rank of the verdict, s from the last step before the fault to the verdict
"""

from __future__ import annotations

from dataclasses import replace

from autotune.testing.runners import events_until_ended
from autotune_workers.runners.local import LocalRunner
from tests.workers.blocking_groups import COLLECTIVES
from tests.workers.fault_table import with_small_memory
from tests.workers.gang.test_blocking_groups import (
    ENDLESS,
    FAULTS,
    HEALTHY,
    KILLED,
    NAN,
    OOM,
    RAISED,
    end_of,
)
from tests.workers.requests import request


def main() -> None:
    """Plays each fault on ranks that are warm."""
    asked = {
        "memory exhausted": replace(with_small_memory(OOM), measure=ENDLESS),
        "an exception": request(RAISED, measure=ENDLESS),
        "killed": request(KILLED, measure=ENDLESS),
        "not a number": request(NAN, measure=ENDLESS),
    }
    with LocalRunner(max_ranks=2, device="cpu", faults=FAULTS, collectives=COLLECTIVES) as runner:
        for name, trial in asked.items():
            healthy = request(HEALTHY)
            runner.start(healthy)
            events_until_ended(runner, [healthy.id])
            end, told_s = end_of(runner, trial)
            failure = end.failure
            verdict = f"{failure.kind} of rank {failure.rank}" if failure else "no failure"
            print(f"{name:20} {verdict:28} {told_s:6.2f} s")


if __name__ == "__main__":
    main()
