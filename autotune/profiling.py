"""Profiles of models: which dry runs are made for a space, what they say, and where it is kept.

    fingerprint   the model (its code, or its widths without its depth), what is trained of it, the versions of torch and transformers, and the format

A profile answers for all depths, micro-batches, sequences, degrees, ZeRO stages and modes of recomputation that it composes. Dry runs at configs of the
space check it, as many as eight runs leave; kinds of training that differ from their check are run in full.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any, final

from autotune.cost.profile import VERSION, Profile, profile_of
from autotune.cost.profile_compose import layouts
from autotune.cost.profile_runs import LATER_STAGE, MOST_RUNS, ProfileRun, checked_runs, fitted_runs
from autotune.cost.profiled_memory import PROFILED_TRAINERS
from autotune.errors import DryRunError, MissingExtraError
from autotune.ports import DryRunLimits, DryRunner, ProfileStore
from autotune.registry import dry_runner
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, DryRun, Study, Workload
from autotune.spec.plain import identity, workload_to_dict

NAMED = 5
"""reasons that are told in words"""
FIRST_PROFILE = (
    "no profile of this model is kept yet: up to {count} dry runs make one, once, which may take minutes; "
    "--no-profile answers at once, with the memory by the formulas of a decoder"
)
"""what to say before the first dry run, where a person waits"""
CHECK_DEPTH = 6
"""layers of a check run, or all where the model has fewer"""
_Made = tuple[ProfileRun, DryRun]
"""a run, and what it said"""
OnRun = Callable[[int, int, str], None]
"""is told of a dry run before it begins: its number from 1, how many there may be, what is run"""


def dry_run_words(number: int, count: int, what: str) -> str:
    """What `OnRun` hears, as a line."""
    return f"profile: dry run {number} of {count}: {what}"


def profile_fingerprint(workload: Workload) -> str:
    """The same for workloads of which one profile answers."""
    model: dict[str, Any] = workload_to_dict(workload)["model"]
    if workload.model.code is None:
        # a decoder's segments do not depend on how many layers there are
        model = {name: value for name, value in model.items() if name not in ("name", "num_layers", "source")}
    trained = [workload.optimizer, workload.document_len, workload_to_dict(workload)["peft"]]
    return identity([VERSION, model, trained, _versions(), workload.cluster.gpu.is_cpu])


@cache
def _versions() -> dict[str, str]:
    """Of the installed packages that decide a dry run."""
    found = {}
    for name in ("torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def find_profile(workload: Workload, store: ProfileStore | None) -> Profile | None:
    """The profile that the store keeps for the workload: the last that was made; None without one."""
    if store is None or workload.trainer not in PROFILED_TRAINERS:
        return None
    values = store.profile(profile_fingerprint(workload))
    return None if values is None else Profile.from_dict(values)


def make_profile(
    workload: Workload,
    table: ConfigTable,
    runner: DryRunner,
    *,
    store: ProfileStore | None = None,
    limits: DryRunLimits | None = None,
    on_run: OnRun | None = None,
) -> Profile:
    """Makes the dry runs, reads and checks the profile, and keeps it. A kind of training that fails is left out, with the reason (`Profile.unread`).

    Raises `DryRunError` where none is left.
    """
    tell, limits = on_run or (lambda number, count, what: None), limits or DryRunLimits()
    if not len(table):
        raise DryRunError("a profile needs a space with at least one config")
    if workload.peft is not None:
        raise DryRunError(
            f"a profile tells the memory of models whose weights are all trained, but peft={workload.peft.method} leaves the model's own as they are",
            remedy="plans and searches take the memory from the formulas; `autotune fit --config` runs one config dry",
        )
    runs = fitted_runs(workload, table)[:MOST_RUNS]
    asked = [layout for layout, _ in layouts(table)]
    count = min(MOST_RUNS, len(runs) + len(checked_runs(workload, asked, depth=CHECK_DEPTH)))
    by_kind, failed = dict[str, list[_Made]](), dict[str, DryRunError]()
    for number, run in enumerate(runs, start=1):
        if run.kind in failed:
            continue
        tell(number, count, f"{run.kind} weights, {len(run.recompute)} layers, tp={run.config.tp}")
        try:
            found = runner.run(
                run.workload, run.config, pp_rank=run.pp_rank, limits=limits, traced=True, recompute=run.recompute
            )
        except DryRunError as error:
            if number == 1:  # the plainest run: a model that fails here fails in all
                raise
            failed[run.kind] = error
        else:
            by_kind.setdefault(run.kind, []).append((run, found))
    profile = profile_of(_readable(by_kind, failed), profile_fingerprint(workload))
    composed = (layout for layout in asked if not profile.why_not(workload, layout))
    checks, left = list(profile.checks), count - len(runs)
    for number, run in enumerate(checked_runs(workload, composed, depth=CHECK_DEPTH)[:left], start=len(runs) + 1):
        tell(number, count, f"check of {run.kind} weights: {run.config}")
        try:
            found = runner.run(run.workload, run.config, pp_rank=run.pp_rank, limits=limits)
        except DryRunError as error:
            failed[run.kind] = error
        else:
            checks.append(profile.against(run, found, is_new=True))
    unread = {kind: " ".join(error.message.split()) for kind, error in failed.items()}
    profile = replace(profile, checks=tuple(checks), unread=unread)
    if store is not None:
        store.save_profile(profile.fingerprint, profile.to_dict())
    return profile


def _readable(by_kind: Mapping[str, list[_Made]], failed: dict[str, DryRunError]) -> list[_Made]:
    """The runs of the kinds that can be read: one that cannot would spoil the others, and is added to `failed`. Raises its error where none is left."""
    for kind, pairs in by_kind.items():
        base = kind.removesuffix(LATER_STAGE)  # which comes before its later stages
        try:
            if base in failed:
                raise failed[base]
            profile_of(pairs if base == kind else [*by_kind[base], *pairs], "")
        except DryRunError as error:
            failed[kind] = error
    if made := [pair for kind, pairs in by_kind.items() if kind not in failed for pair in pairs]:
        return made
    raise next(iter(failed.values()))


def answers_for(profile: Profile, workload: Workload, table: ConfigTable) -> bool:
    """Whether the profile holds what the dry runs of this space would be made with, or knows that they fail."""
    runs = fitted_runs(workload, table)
    return all(
        run.kind in profile.unread
        or (
            run.kind in profile.templates
            and set(run.recompute) <= set(profile.templates[run.kind].layers)
            and all(
                run.config.value(name) == value for name, value in profile.fixed.items() if name != "sequence_parallel"
            )
        )
        for run in runs
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a profile answers for in a space."""

    configs: int
    """of the space"""
    composed: int
    """whose memory the profile composes"""
    in_full: Mapping[str, int]
    """the others by the reason, the most frequent first; the formulas answer for them in plans, and `autotune fit` runs them in full"""


def coverage(profile: Profile, workload: Workload, table: ConfigTable) -> Coverage:
    """Counts over the configs of a space."""
    reasons = Counter[str]()
    for layout, rows in layouts(table):
        reasons[profile.why_not(workload, layout)] += len(rows)
    composed = reasons.pop("", 0)
    return Coverage(configs=len(table), composed=composed, in_full=dict(reasons.most_common()))


def profile_document(profile: Profile, found: Coverage) -> dict[str, Any]:
    """The dry runs, their checks and the configs that the profile answers for, as plain JSON values."""
    checks = [{**asdict(check), "error": check.error} for check in profile.checks]
    return {"fingerprint": profile.fingerprint, "runs": list(profile.runs), "checks": checks, **asdict(found)}


def profile_lines(profile: Profile, found: Coverage) -> list[str]:
    """The same in sentences."""
    composed = f"{found.composed:,} of {found.configs:,} configs of the space"
    lines = [f"{profile.words}: plan, estimate and tune take the memory of {composed} from it"]
    lines += [
        f"check of {check.kind} weights at {check.config}: {check.error:+.3%}"
        for check in profile.checks
        if check.is_new
    ]
    lines += [f"by the formulas, {count:,}: {reason}" for reason, count in list(found.in_full.items())[:NAMED]]
    more = sum(list(found.in_full.values())[NAMED:])
    return lines + ([f"by the formulas, {more:,} for other reasons"] if more else [])


def profile_study(
    study: Study,
    *,
    store: ProfileStore | None = None,
    limits: DryRunLimits | None = None,
    on_run: OnRun | None = None,
    runner: DryRunner | None = None,
    space: SearchSpace | None = None,
) -> Profile:
    """What at most eight dry runs say of the model's memory in all configs of the study's space; kept in `store`, where plans, estimates and searches find it.

    A profile that the store has is not made again, unless the space asks for what it was not made with (another precision, say). Building a model of
    your own runs its code, in a process of its own within `limits`. `on_run` hears of each dry run before it begins. `space`: that of the study, where it
    is enumerated already. Raises `DryRunError` where the model cannot be run dry, and `MissingExtraError` without torch.
    """
    code = study.workload.model.code
    if study.workload.trainer not in PROFILED_TRAINERS:
        raise DryRunError(
            f"a profile tells the memory of the trainers whose code is run dry ({', '.join(PROFILED_TRAINERS)}), but trainer={study.workload.trainer}",
            remedy="plans and searches take the memory from the formulas; `autotune fit --config` tells that of one config under the native trainer",
        )
    if code is not None and code.has_towers:
        raise DryRunError(
            f"a profile runs the model on tokens, but {study.workload.model.name} has parts that take other inputs",
            remedy="`autotune fit --config` runs one config of it dry, on tokens",
        )
    if code is not None and len(code.layers) > 1:
        raise DryRunError(
            f"a profile composes layers of one kind, but {study.workload.model.name} has {len(code.layers)} kinds",
            remedy="`autotune fit --config` runs one config of it dry, with all its layers",
        )
    table = (space or SearchSpace.of_study(study)).table
    known = find_profile(study.workload, store)
    if known is not None and answers_for(known, study.workload, table):
        return known
    return make_profile(study.workload, table, runner or dry_runner(), store=store, limits=limits, on_run=on_run)


def ensure_profile(
    study: Study,
    store: ProfileStore | None,
    *,
    space: SearchSpace | None = None,
    on_run: OnRun | None = None,
    runner: DryRunner | None = None,
) -> str:
    """Makes and keeps the profile of a model that code builds, where it is needed and `store` holds none. Returns in one line why none could be made.

    The formulas answer for the shapes of the catalog, which they know; of other models they know what a decoder of like size takes. Where no profile can
    be made they answer too, so nothing is raised for that. Without a store nothing is made, because the next answer would have to make it again.
    """
    workload = study.workload
    if store is None or workload.model.code is None or workload.trainer not in PROFILED_TRAINERS:
        return ""
    try:
        profile_study(study, store=store, on_run=on_run, runner=runner, space=space)
    except (DryRunError, MissingExtraError) as error:
        return " ".join(error.message.split())
    return ""
