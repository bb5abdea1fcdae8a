"""The dry runs of a model that code builds, made before the first study of it begins."""

from __future__ import annotations

from autotune.ports import Store
from autotune.profiling import FIRST_PROFILE, dry_run_words, ensure_profile
from autotune.space import SearchSpace
from autotune.spec import Study
from autotune.study.assembly import assemble
from autotune.study.preflight import check_here
from autotune.study.progress import Notice, OnEvent


def profile_first(study: Study, store: Store, tell: OnEvent, *, passed: bool) -> None:
    """Makes the dry runs that the study's model lacks, and says what comes of it. `passed`: whether the runner is an object, which is asked nothing."""
    space = SearchSpace.of_study(study)
    if not passed:  # a study that cannot run here need not wait for dry runs to hear it
        if study.at_hand is None:
            check_here(study, space)
        else:
            here = assemble(study, store).runs_here
            check_here(here.study, here.space)

    def on_run(number: int, count: int, what: str) -> None:
        if number == 1:
            tell(Notice(message=FIRST_PROFILE.format(count=count)))
        tell(Notice(message=dry_run_words(number, count, what)))

    problem = ensure_profile(study, store, space=space, on_run=on_run)
    if problem:
        tell(
            Notice(
                message=f"memory is predicted by the formulas of a decoder, because no dry run could be made: {problem}"
            )
        )
