"""A process that writes trials and says on standard output what was acknowledged: `python -m
tests.store.writer ADDRESS STUDY FENCE [LIMIT]`.

Lines: `ended N`, `refused KIND` (an error of the store, after which it tries again), `fenced` (then
it ends). With LIMIT no file may grow beyond so many bytes, as on a full disk, until a line arrives
on standard input.
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from datetime import UTC, datetime

from autotune.errors import ConflictError, StoreError
from autotune.ports import EndTrial, KeepTrial, Lease
from autotune.store import SqlStore, open_store
from autotune.testing.stores import decide, launch, measured, pending, reported


def main(address: str, study: str, fence: str, limit: str = "") -> None:
    """Writes until it is killed, fenced, or its standard input ends."""
    store = open_store(address)
    lease = Lease(study=study, owner="writer", fence=int(fence), expires_at=datetime.now(UTC))
    first = len(store.trials(study))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    for number in itertools.count(first):
        while not write(store, lease, number):
            if limit:
                sys.stdin.readline()
                resource.setrlimit(
                    resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                )
                limit = ""
            time.sleep(0.05)
        print(f"ended {number}", flush=True)


def write(store: SqlStore, lease: Lease, number: int) -> bool:
    """One trial from its asking to its end; every write can be repeated."""
    try:
        decide(store, lease, KeepTrial(trial=pending(number)))
        decide(store, lease, launch(lease, number, 1))
        store.add_steps(lease, [reported((lease.study, number, 1), 0, [0.5] * 20)])
        decide(store, lease, EndTrial(trial=measured(pending(number))))
    except StoreError as error:
        print(f"refused {error.kind}: {error}", flush=True)
        return False
    except ConflictError as error:
        if "already" not in str(error) and "only an open trial" not in str(error):
            print("fenced", flush=True)
            raise SystemExit(0) from None
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
