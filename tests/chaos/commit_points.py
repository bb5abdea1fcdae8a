"""Deaths at the writes of a study: the process ends just before or just after one of its commits,
and another continues from what was kept.

    write     one transaction of the store, counted from 1 in the whole life of the study: of its controllers and of the people who steer it
    death     before the commit: nothing of the transaction is kept; after it: all of it, but nobody was told

In this process a death is an exception that nothing catches and after which the store refuses every
write; in a process of its own it is a SIGKILL. Afterwards the study is continued to its end and
compared with the one that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from autotune import api
from autotune.ports import StudyRecord
from autotune.spec import TrialStatus
from autotune.store import SqlStore, open_store
from autotune.store.upkeep.history_rules import rule_violations
from autotune.study.progress import LoopEvent, StudyOpened, TrialEnded
from tests.chaos.arena import see
from tests.chaos.checker import Seen, outcome, study_outcome
from tests.chaos.replay.faults import faults_of
from tests.small_studies import QUIET, spec

LONG_S = 3600.0


class DeathError(BaseException):
    """The process ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A study, and what people ask for in its course."""

    name: str
    spec: dict[str, Any]
    wishes: tuple[tuple[int, str], ...] = ()
    """(ended trials, action): as soon as so many trials have ended somebody asks for the action;
    whoever finds the study paused resumes it"""

    @property
    def is_cut_short(self) -> bool:
        """Whether it is ended from outside: then a trial that ran at the death of its controller is
        not tried again."""
        return any(action in ("stop", "cancel") for _, action in self.wishes)


def stories() -> tuple[Story, ...]:
    """A study with configs that need more ranks than there are, a retry, a trial whose worker is
    lost for good, late reports, a reference and finals; and the same, paused and resumed, stopped,
    cancelled. And a study with a target, whose trials are proxies."""
    faults = [
        {"kind": "duplicate", "probability": 0.3},
        {"kind": "late", "probability": 0.3},
        {"kind": "worker_lost", "trial": 2, "attempt": 1},
        {"kind": "worker_lost", "trial": 4},
    ]
    document = spec(
        name="dies",
        space={
            "tp": [1, 2, 4],
            "micro_batch_size": [1, 2, 4],
            "precision": ["bf16"],
            "world_sizes": [4, 8],
        },
        baseline="dp=4,micro_batch_size=1,accumulation_steps=16",
        budget={"max_trials": 5, "min_gain": 0},
        runner=QUIET | {"capacity": 4, "faults": faults},
    )
    proxies = spec(
        name="dies",
        cluster="h100-sxm-1x4",
        target={"cluster": "h100-sxm-4x8", "global_batch_size": 256},
        searcher="bayesian",
        space={
            "tp": [1, 2],
            "pp": [1, 2],
            "micro_batch_size": [4, 8],
            "precision": ["bf16"],
            "zero_stage": [0, 1],
        },
        budget={"max_trials": 4, "min_gain": 0},
        runner=QUIET | {"capacity": 4, "faults": faults},
    )
    return (
        Story(name="runs", spec=document),
        Story(name="paused", spec=document, wishes=((3, "pause"), (6, "pause"))),
        Story(name="stopped", spec=document, wishes=((3, "stop"),)),
        Story(name="cancelled", spec=document, wishes=((4, "cancel"),)),
        Story(name="target", spec=proxies),
    )


class MortalWrites:
    """The writes of a store, counted; `die` is called at one of them."""

    def __init__(
        self, store: SqlStore, *, at: int | None, after: bool, die: Callable[[], None]
    ) -> None:
        self.count = 0
        self.is_dead = False
        self._at, self._after, self._die = at, after, die
        self._write = store.database.write
        store.database.write = self.write  # type: ignore[method-assign]

    @contextlib.contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Connection]:
        """As `Database.write`."""
        # the renewal of a lease decides nothing
        if threading.current_thread() is not threading.main_thread():
            with self._write(durable=durable) as connection:
                yield connection
            return
        if self.is_dead:
            raise DeathError
        self.count += 1
        is_last = self.count == self._at
        with self._write(durable=durable) as connection:
            yield connection
            if is_last and not self._after:
                self._end()
        if is_last:
            self._end()

    def _end(self) -> None:
        self.is_dead = True
        self._die()

    def revive(self, store: SqlStore, study_id: str) -> None:
        """What comes after the death: another process, which finds the lease of the first one run
        out."""
        self.is_dead = False
        if (held := store.holder(study_id)) is not None:
            store.release(held)


def raise_death() -> None:
    """Ends this thread's work, not the process."""
    raise DeathError


def kill_this_process() -> None:
    """The real thing."""
    os.kill(os.getpid(), signal.SIGKILL)


def begin(store: SqlStore, story: Story) -> str:
    """Submits the study."""
    return api.submit_study(store, api.load_study(story.spec), story.spec).id


def tell(store: SqlStore, study_id: str, story: Story, done: set[int]) -> StudyRecord:
    """Runs the study until it ends; people ask for what the story says, and ask again until they
    get an answer."""

    def hear(event: LoopEvent) -> None:
        if not isinstance(event, StudyOpened | TrialEnded):
            return
        counts = store.study(study_id).trial_counts
        ended = sum(count for status, count in counts.items() if TrialStatus(status).is_terminal)
        for index, (after, action) in enumerate(story.wishes):
            if ended >= after and index not in done:
                api.act(store, study_id, action)
                done.add(index)

    while not (record := store.study(study_id)).status.is_terminal:
        if record.wanted == "pause":
            api.act(store, study_id, "resume")
        api.run_study(store, study_id, on_event=hear, lease_s=LONG_S)
    return record


def count_writes(store: SqlStore, story: Story) -> tuple[int, Seen]:
    """The writes of the undisturbed study, from its submission on, and what came of it."""
    study_id = begin(store, story)
    writes = MortalWrites(store, at=None, after=False, die=raise_death)
    tell(store, study_id, story, set())
    return writes.count, see(store, study_id, [])


def die_at(store: SqlStore, story: Story, at: int, *, after: bool) -> Seen:
    """The study whose process died before or after its write number `at`, continued to its end."""
    study_id, done = begin(store, story), set[int]()
    writes = MortalWrites(store, at=at, after=after, die=raise_death)
    while True:
        try:
            tell(store, study_id, story, done)
            return see(store, study_id, [])
        except DeathError:
            writes.revive(store, study_id)


def run_and_die(address: str, study_id: str, number: int, at: int, after: bool) -> None:
    """A process that runs story `number` and kills itself at that write."""
    with contextlib.closing(open_store(address)) as store:
        MortalWrites(store, at=at, after=after, die=kill_this_process)
        tell(store, study_id, stories()[number], set())


def wrong(story: Story, seen: Seen, undisturbed: Seen, store: SqlStore) -> list[str]:
    """What differs from the undisturbed study, and the laws that are broken."""
    faults = [*rule_violations(seen.record, seen.trials, seen.events), *faults_of(store)]
    ours, theirs = ([outcome(t) for t in each.trials] for each in (seen, undisturbed))
    if not story.is_cut_short:
        if study_outcome(seen.record) != study_outcome(undisturbed.record):
            faults.append(
                f"it came to {study_outcome(seen.record)}, undisturbed to {study_outcome(undisturbed.record)}"
            )
        return faults + _other(ours, theirs)
    if seen.record.status is not undisturbed.record.status:
        faults.append(f"it is {seen.record.status}, undisturbed {undisturbed.record.status}")
    both = [
        (a, b)
        for t, a, b in zip(seen.trials, ours, theirs, strict=False)
        if t.status is not TrialStatus.CANCELLED
    ]
    return faults + [
        f"a trial came to {a}, undisturbed to {b}"
        for a, b in both
        if a != b and "CANCELLED" not in b
    ]


def _other(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    found = [
        f"trial {n} came to {a}, undisturbed to {b}"
        for n, (a, b) in enumerate(zip(ours, theirs, strict=False))
        if a != b
    ]
    return found + (
        [f"there are {len(ours)} trials, undisturbed {len(theirs)}"]
        if len(ours) != len(theirs)
        else []
    )
