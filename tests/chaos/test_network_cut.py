"""Two controllers on machines of their own, and a PostgreSQL server that one of them cannot reach
for longer than its lease.

The machines are namespaces (`tests.nodes`), so that a cut link is silent: no connection is closed,
and the controller that is cut off learns of it by waiting.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune import api
from autotune.ports import Lease
from autotune.store import SqlStore, open_store
from tests.chaos.arena import see, undisturbed
from tests.chaos.checker import Journal, terms, violations
from tests.chaos.controller import read_journal
from tests.chaos.replay.faults import faults_of
from tests.chaos.schedule import study_spec
from tests.nodes.network import Network, Node, until, what_is_missing
from tests.postgresql import postgres_server

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing()),
]

LEASE_S = 3.0
DEADLINE_S = 900.0
SPEC = study_spec(searcher="cost_ranked", seed=0)
SPEC["runner"] = SPEC["runner"] | {"time_scale": 2.0}
START = (
    "import sys; from tests.chaos.controller import main; main(*sys.argv[1:4], float(sys.argv[4]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node and the controller on it."""

    node: Node
    controller: subprocess.Popen[bytes]
    journals: Path

    def journal(self) -> Journal:
        """What the controller wrote down; it has started by then."""
        (path,) = self.journals.glob(f"{self.node.name}:*")
        return read_journal(path)

    def holds(self, lease: Lease | None) -> bool:
        """Whether the lease is its controller's."""
        return lease is not None and lease.owner.startswith(f"{self.node.name}:")


@contextlib.contextmanager
def two_machines(
    store: SqlStore, study: str, address: str, network: Network, folder: Path
) -> Iterator[list[Machine]]:
    """One that runs the study, and one that waits for its turn."""
    for name in ("journals", "clocks"):
        (folder / name).mkdir()
    machines: list[Machine] = []
    try:
        for node in network.nodes:
            argv = (sys.executable, "-c", START, address, study, str(folder), str(LEASE_S))
            machine = Machine(node=node, controller=node.start(*argv), journals=folder / "journals")
            machines.append(machine)
            first = machines[0]
            until(
                lambda: first.holds(store.holder(study)),  # noqa: B023
                DEADLINE_S,
                "the first controller has the study",
            )
        yield machines
    finally:
        for machine in machines:
            machine.controller.kill()
            machine.controller.wait(DEADLINE_S)


def has(journal: Journal, kind: str) -> bool:
    """Whether such a line is in it."""
    return any(line.kind == kind for line in journal.lines)


def test_a_controller_that_is_cut_off_for_longer_than_its_lease_writes_nothing_afterwards(
    tmp_path: Path,
) -> None:
    with Network(2) as network, postgres_server(beside=network.address) as server:
        database = server.new_database().rpartition("/")[2]
        with contextlib.closing(open_store(server.url(database))) as store:
            study = api.submit_study(store, api.load_study(SPEC), SPEC).id
            address = server.url(database, host=network.address)
            with two_machines(store, study, address, network, tmp_path) as (cut_off, other):
                until(lambda: store.study(study).trial_counts.get("COMPLETED", 0) >= 2, DEADLINE_S)
                cut_off.node.cut()
                cut_at = time.monotonic()
                until(lambda: other.holds(store.holder(study)), DEADLINE_S, "the other took over")
                until(lambda: has(other.journal(), "ended"), DEADLINE_S)
                assert time.monotonic() - cut_at > LEASE_S, (
                    "nobody takes a lease that has not run out"
                )
                until(
                    lambda: has(cut_off.journal(), "waits"),
                    DEADLINE_S,
                    "it says that it cannot reach the store",
                )
                cut_off.node.heal()
                assert cut_off.controller.wait(DEADLINE_S) == 0, "it leaves by itself"
                until(lambda: store.study(study).status.is_terminal, DEADLINE_S)
                assert other.controller.wait(DEADLINE_S) == 0
                journals = [machine.journal() for machine in (cut_off, other)]
            seen = see(store, study, journals)
            assert violations(seen, undisturbed(SPEC)) == []
            assert faults_of(store) == []
    last = [journal.lines[-1].said for journal in journals]
    assert last[0].startswith("conflict: the lease on study")
    assert last[1] == "done"
    assert terms(seen.events) == 2
