"""The profile of a model that code builds, made before the first study of it begins."""

from __future__ import annotations

from autotune.ports import Store
from autotune.profiling import dry_run_words, ensure_profile
from autotune.space import SearchSpace
from autotune.spec import Study
from autotune.study.assembly import assemble
from autotune.study.preflight import check_here
from autotune.study.progress import Notice, OnEvent


def profile_first(study: Study, store: Store, tell: OnEvent, *, passed: bool) -> None:
    """Makes the profile that the study's model lacks, and says what comes of it. `passed`: whether the runner is an object, which is asked nothing."""
    space = SearchSpace.of_study(study)
    if not passed:  # a study that cannot run here need not wait for dry runs to hear it
        if study.at_hand is None:
            check_here(study, space)
        else:
            here = assemble(study, store).runs_here
            check_here(here.study, here.space)
    problem = ensure_profile(study, store, space=space, on_run=lambda *run: tell(Notice(message=dry_run_words(*run))))
    if problem:
        tell(
            Notice(
                message=f"memory is predicted by the formulas of a decoder, because no profile could be made: {problem}"
            )
        )
