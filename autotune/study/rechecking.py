"""The recheck of a stored study: its configs out of the store, measured on its own runner, and a note of what came of it back into the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

from autotune import reward
from autotune.errors import SpecError, StoreError
from autotune.ports import ServiceStore, StudyRecord, TrialRunner
from autotune.results.answers import result_of
from autotune.results.result import Result
from autotune.spec import ParallelConfig
from autotune.study.assembly import assemble, make_runner_of
from autotune.study.recheck import ROUNDS, Recheck, chosen, run_recheck

SLOWER = 0.03
"""relative slowdown that is spoken of where none was named"""


def recheck_study(
    store: ServiceStore,
    asked: str,
    *,
    rounds: int = ROUNDS,
    max_slowdown: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    runner: TrialRunner | None = None,
) -> tuple[StudyRecord, Recheck]:
    """Runs it. `runner`: the study's own where that was passed as an object. Raises `NotFoundError` for a study without a measured config, `SpecError` for one
    whose trials stand for others, and `RunnerError` for what cannot run here."""
    found = result_of(store, asked)
    record = found.record
    if record.study.at_hand is not None:
        raise SpecError(
            f"the trials of {record.study.name} stand for configs of its target, so none of its configs was measured itself",
            remedy="recheck a study on the cluster that it runs on",
            field="STUDY",
        )
    configs = chosen(found.trials, _ranked(found), found.baseline.config if found.baseline else None)
    with closing(make_runner_of(assemble(record.study, store), runner)) as opened:
        seen = run_recheck(record.study, record.id, opened, configs, rounds=rounds, say=say)
    result = Recheck(
        name=record.study.name, configs=seen, max_slowdown=SLOWER if max_slowdown is None else max_slowdown
    )
    with suppress(StoreError):  # the answer is worth more than its note
        store.annotations.add_note(record.id, f"recheck: {result.verdict}; {result.order}")
    return record, result


def _ranked(found: Result) -> list[ParallelConfig]:
    """Its configs, best first."""
    best = [found.best.config] if found.best else []
    confirmed = [trial.config for trial in found.confirmed]
    others = [trial.config for trial in sorted((t for t in found.measured if t.reward), key=reward.by_reward)]
    return list(dict.fromkeys([*best, *confirmed, *others]))
