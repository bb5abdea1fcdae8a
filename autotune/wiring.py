"""Where the parts meet: a spec becomes a study, a study becomes a running loop, a finished loop becomes an answer.

    load_study    YAML, JSON or a mapping -> Study             open_store   URL or setting -> Store
    plan_of       Study -> ranked predictions, no hardware     calibrate    measures this machine for the cost model
    tune          Study -> Result, in the foreground           submit_study, run_study   the same in two halves, for the service
    result_of     what the store knows of a study              document     the JSON of `tune`, `status` and `best`
    explain       why a trial won or lost                      rerank, pareto            other orders of the same trials

Everything that these functions choose by name (searcher, runner, trainer, store) is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.cost import Calibration
    from autotune.loop import LoopEvent
    from autotune.plan import Plan
    from autotune.ports import Store, StudyRecord
    from autotune.spec import Objective, Study, Trial

OnEvent = Callable[["LoopEvent"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study came to, as far as it came."""

    record: StudyRecord
    """the study with its status, message, and `record.result`: phase, finals, stop reason, notes"""
    trials: tuple[Trial, ...]
    """all of them, by number"""
    best: Trial | None
    """the named winner, or the best so far"""
    baseline: Trial | None
    """the default config's trial, where it could be measured"""
    speedup: float | None
    """best against baseline in tokens per second: medians of the final rounds, else of their own trials"""


def load_study(source: str | Path | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None) -> Study:
    """The study of a spec file (YAML or JSON; `-`: standard input) or of a spec as a mapping.

    `overrides` replace keys of the document; a dotted key reaches inside: `{"budget.max_trials": 5}`. Raises `SpecError`.
    """
    raise NotImplementedError


def open_store(url: str | Path | None = None) -> Store:
    """The results database at `url` (None: AUTOTUNE_STORE, else an SQLite file in the user's data folder). Raises `StoreError`."""
    raise NotImplementedError


def plan_of(study: Study, *, top: int = 10, store: Store | None = None) -> Plan:
    """The space ranked by the cost model, with this cluster's calibration when `store` holds one. Raises `InfeasibleError`."""
    raise NotImplementedError


def tune(
    study: Study | str | Path | Mapping[str, Any],
    *,
    store: Store | str | Path | None = None,
    on_event: OnEvent | None = None,
    resume: bool = True,
    spec: Mapping[str, Any] | None = None,
    study_id: str | None = None,
    owner: str = "",
) -> Result:
    """Runs a study in the foreground, to its end or to Ctrl-C (then the record is PAUSED and the same call goes on).

    `resume`: an unfinished study of the same name and spec goes on instead of a new one; `study_id` names it outright; `spec`: the
    document as written, kept beside the study. Raises `InfeasibleError` before anything starts, `RunnerError`, `StoreError`,
    `ConflictError` when another live controller has it.
    """
    raise NotImplementedError


def submit_study(
    store: Store,
    study: Study,
    spec: Mapping[str, Any] | None = None,
    *,
    idempotency_key: str | None = None,
    owner: str = "",
) -> StudyRecord:
    """Checks that the study can be run at all (space, searcher, trainer, guesses; `InfeasibleError`) and keeps it as QUEUED."""
    raise NotImplementedError


def run_study(
    store: Store,
    study_id: str,
    *,
    on_event: OnEvent | None = None,
    interrupted: Callable[[], bool] | None = None,
    lease_s: float = 10.0,
) -> Result:
    """Claims a submitted study and runs it until it ends, is paused, or `interrupted()` says so. For `tune` and the supervisor.

    Raises `ConflictError` when a live controller holds it. Whatever else goes wrong for good makes the study FAILED with a message.
    """
    raise NotImplementedError


def result_of(store: Store, study_id: str) -> Result:
    """What the store knows of a study, running or finished. Raises `NotFoundError`."""
    raise NotImplementedError


def document(result: Result, *, top: int = 0) -> dict[str, Any]:
    """Plain JSON values: study {id, name, status, trials (count by status), ...}, best, baseline, speedup; `configs` when `top` > 0."""
    raise NotImplementedError


def past_studies(
    store: Store, *, model: str = "", cluster: str = "", trainer: str = "", limit: int = 10
) -> list[dict[str, Any]]:
    """`document`s of the best measured trials across all history, best first: {study, best}."""
    raise NotImplementedError


def explain(store: Store, study_id: str, number: int | None = None) -> dict[str, Any]:
    """Why a trial (None: the winner) won or lost: {"trial", "text": [sentences], "parts", "against": {baseline, runner_up}}."""
    raise NotImplementedError


def rerank(store: Store, study_id: str, objective: Objective) -> list[Trial]:
    """The measured trials of a study with their rewards under another objective, best first. Runs nothing, changes nothing."""
    raise NotImplementedError


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """The measured trials that no other beats in throughput, stability, memory headroom and cost at once, by number."""
    raise NotImplementedError


def calibrate(
    cluster: str = "local", *, store: Store | None = None, on_progress: Callable[[str], None] | None = None
) -> Calibration:
    """Measures this machine in about a minute; kept in `store`, where one is given, for the cost model of later studies."""
    raise NotImplementedError
