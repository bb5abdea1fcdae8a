"""What a controller was told when it began, as far as it can be told again: the study worked out with the constants of then, and a searcher that knows what it knew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from autotune.errors import CatalogError, MissingExtraError
from autotune.ports import Store, StudyRecord
from autotune.profiling import find_profile
from autotune.search import PASSED, Problem, Searcher
from autotune.spec.plain import canonical, fingerprint
from autotune.study.assembly import Assembly, assemble_with, history_of, teachers_of
from autotune.study.beginning import Beginning
from autotune.study.replay.recorded_searcher import RecordedSearcher

if TYPE_CHECKING:
    from autotune.cost import Calibration
    from autotune.cost.profile import Profile


@final
class Inputs:
    """Of the controllers of one study."""

    def __init__(self, store: Store, record: StudyRecord) -> None:
        self._store, self._record = store, record
        self._assemblies: dict[str, Assembly] = {}

    def assembly(self, begins: Beginning) -> Assembly:
        """The study as the controller had it; without the profile of the model where that is gone. Raises what `assemble` raises."""
        key = canonical([begins.constants, begins.profile])
        if key not in self._assemblies:
            self._assemblies[key] = assemble_with(self._record.study, self._constants(begins))
        return self._assemblies[key]

    def searcher(self, begins: Beginning, assembly: Assembly) -> Searcher | str:
        """The searcher as it began; or why its choices cannot be made again, in words."""
        study, store = self._record.study, self._store
        before = self._record.created_at
        if study.searcher.startswith(PASSED):
            return "the searcher was passed as an object"
        if begins.profile and self._profile(begins) is None:
            return "the profile of the model was made again since"
        if begins.learnt_from != tuple(teacher.id for teacher in teachers_of(study, store, before=before)):
            return "studies that it learnt from are gone"
        try:
            return assembly.searcher(history_of(study, store, before=before))
        except (CatalogError, MissingExtraError) as error:
            return error.message

    def recorded(self, assembly: Assembly) -> RecordedSearcher:
        """A searcher that asks for what is recorded."""
        study = self._record.study
        problem = Problem(space=assembly.space, seed=study.seed, objective=study.objective, enqueue=study.enqueue)
        return RecordedSearcher(problem, str(self._record.result.get("stop_reason", "")))

    def _constants(self, begins: Beginning) -> Calibration | None:
        from autotune.cost import Calibration

        if begins.constants is None:
            return None
        constants = Calibration.from_dict(begins.constants)
        return replace(constants, profile=self._profile(begins)) if begins.profile else constants

    def _profile(self, begins: Beginning) -> Profile | None:
        """The profile that the controller had; None where the store has another by now."""
        study = self._record.study
        places = [study.workload.cluster, *([study.at_hand] if study.at_hand else [])]
        found = (find_profile(replace(study.workload, cluster=place), self._store) for place in places)
        return next((p for p in found if p is not None and fingerprint(p.to_dict()) == begins.profile), None)
