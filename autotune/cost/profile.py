"""A profile: what a handful of dry runs says of one model's training, for all configs of a space.

It knows the segments of a micro-batch for each kind of training (`profile_runs.kind_of`) and the shapes of the weights. The peak of a config is composed
from them (`profile_replay`), exactly as a dry run of that config would find it. What is not composed (`why_not`) must be run in full.

Bytes are those that tensors hold (`allocated`), as in a dry run; what an allocator reserves beyond them is no part of a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile_compose import ELEMENT_BYTES, Composer, layouts, stage_layers
from autotune.cost.profile_replay import Peak, Peaks
from autotune.cost.profile_runs import LATER_STAGE, ProfileRun, has_later_stages, kind_of
from autotune.cost.profile_templates import Sketch, Templates, aligned_sketch, message_of, sketch_of, templates_of
from autotune.cost.profile_weights import ProfiledWeight, weights_of
from autotune.cost.profile_work import Work
from autotune.cost.profile_work_read import work_of
from autotune.errors import DryRunError
from autotune.spec import ConfigTable, DryRun, MemoryTrace, ParallelConfig, Workload

VERSION = 8
"""of the format; a profile of another version is made anew"""
SCHEDULES = ("1f1b", "gpipe")
"""of pipelines that are composed"""
TOLERANCE = 1e-3
"""largest relative error at which a check run confirms a kind of training"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCheck:
    """One dry run against the profile."""

    kind: str
    """of the training"""
    config: str
    """label of the config that was run, with its depth"""
    composed_bytes: float
    """the profile's peak"""
    run_bytes: float
    """the dry run's"""
    is_new: bool = True
    """whether it was run for the check alone; else the profile was read from it"""
    in_pipeline: bool = False
    """whether it was run with pipeline stages"""

    @property
    def error(self) -> float:
        """Relative."""
        return self.composed_bytes / self.run_bytes - 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """See the module."""

    fingerprint: str
    """of the model, what is trained of it, the knobs that a profile does not vary, and the versions below"""
    versions: Mapping[str, str]
    """of torch and what else decided the dry runs"""
    fixed: Mapping[str, Any]
    """knobs that must be as they were in the dry runs"""
    optimizer: str
    """whose states were counted"""
    templates: Mapping[str, Templates]
    """by kind of training"""
    degrees: Mapping[str, tuple[int, ...]]
    """tensor-parallel ranks of the dry runs, by kind of training; of a single degree only that one is composed"""
    weights: tuple[ProfiledWeight, ...]
    """in the order of the model, of one layer and of what is outside of the layers"""
    runs: tuple[str, ...]
    """labels of the dry runs from which it was read"""
    work: Mapping[str, Work]
    """FLOPs, matrix products and collectives by kind of training"""
    checks: tuple[ProfileCheck, ...] = ()
    """what confirms it"""
    unread: Mapping[str, str] = field(default_factory=dict)
    """kinds of training whose dry runs failed or could not be read, with the reason"""

    @property
    def words(self) -> str:
        """The profile by the number of its dry runs."""
        return f"a profile of {self.num_runs} dry run{'s' if self.num_runs > 1 else ''}"

    @property
    def num_runs(self) -> int:
        """Dry runs that were made for it."""
        return len(self.runs) + sum(check.is_new for check in self.checks)

    def why_not(self, workload: Workload, config: ParallelConfig) -> str:
        """Why the config's memory is not composed and it must be run in full; empty where it is."""
        kind = kind_of(config.zero_stage, config.tp)
        kinds = [kind]
        if config.pp > 1 and has_later_stages(workload.model, config.precision):
            kinds.append(kind_of(config.zero_stage, config.tp, later=True))
        if reason := self._other_knob(config):
            return reason
        if len(kinds) > 1 and (config.recompute != "none" or config.pp_schedule != "1f1b"):
            return (
                f"the later stages of a model that code builds are not composed in {config.precision} with recompute={config.recompute} under "
                f"{config.pp_schedule}"
            )
        for each in kinds:
            if each in self.unread:
                return self.unread[each]
            if each not in self.templates:
                return f"no dry run of {each} weights"
            if config.recompute not in self.templates[each].layers:
                return f"no layer was run with recompute={config.recompute} ({each} weights)"
            if reason := self._other_degree(each, config):
                return reason
        if config.pp > 1 and config.pp_schedule not in SCHEDULES:
            return f"a pipeline under {config.pp_schedule} is not composed"
        if config.pp > 1 and workload.model.tied_embeddings:
            return "the stages of a pipeline that share an embedding are not composed"
        if workload.optimizer != self.optimizer:
            return f"optimizer {workload.optimizer}, but the profile was made with {self.optimizer}"
        for check in (check for each in kinds for check in self._checks_of(each)):
            if abs(check.error) > TOLERANCE and (config.pp > 1 or not check.in_pipeline):
                return f"a dry run of {check.kind} weights differed by {check.error:+.2%}: {check.config}"
        if config.pp > 1:
            if config.zero_stage == 2:
                return (
                    f"pp={config.pp} with zero_stage=2 is not composed: some such steps take up to half a percent more"
                )
            fewest = min(stage_layers(workload.model, config))
            if not fewest:
                return f"pp={config.pp} leaves a stage without a layer, which is not composed"
            if config.pp_schedule == "gpipe" and config.zero_stage < 2 and fewest == 1:
                return f"pp={config.pp} leaves a stage with a single layer, which is not composed under gpipe with whole weights"
        if config.ep > 1:
            return f"experts on several ranks (ep={config.ep}) are not composed"
        return ""

    def why_no_work(self, config: ParallelConfig) -> str:
        """Why the config's work and traffic are not composed; empty where they are."""
        kind = kind_of(config.zero_stage, config.tp)
        if reason := self._other_knob(config):
            return reason
        if kind not in self.work:
            return f"no dry run of {kind} weights"
        if config.recompute not in self.work[kind].layers:
            return f"no layer was run with recompute={config.recompute}"
        return self._other_degree(kind, config)

    def _other_degree(self, kind: str, config: ParallelConfig) -> str:
        """Why the tensor-parallel degree is not composed; empty where it is."""
        degrees = self.degrees.get(kind, ())
        if config.tp > 1 and len(degrees) == 1 and config.tp not in degrees:
            return f"tp={config.tp}, but the model was run with tp={degrees[0]} alone, which tells nothing of other degrees"
        return ""

    def _other_knob(self, config: ParallelConfig) -> str:
        """Which knob is not as in the dry runs; empty where all are."""
        for name, value in self.fixed.items():
            if config.value(name) != value and not (name == "sequence_parallel" and config.tp == 1):
                return f"{name}={config.value(name)}, but the profile was made with {name}={value}"
        return ""

    def _checks_of(self, kind: str) -> list[ProfileCheck]:
        """Those of the kind, and where none was run for it alone, those of the kind whose weights are kept in the same way."""
        own = [check for check in self.checks if check.kind == kind]
        if any(check.is_new for check in own):
            return own
        return own + [check for check in self.checks if check.is_new and check.kind.split()[0] == kind.split()[0]]

    def peak(self, workload: Workload, config: ParallelConfig) -> Peak:
        """The fullest rank's peak. Raises `DryRunError` where it is not composed."""
        reason = self.why_not(workload, config)
        if reason:
            raise DryRunError(f"the profile does not answer for {config}: {reason}", remedy="run it dry in full")
        sizes, steps = [config.micro_batch_size], [config.accumulation_steps]
        return Peak.of(Composer(self, workload, sizes).peaks(config, sizes, steps))

    def rank_peak(
        self, workload: Workload, config: ParallelConfig, pp_rank: int, recompute: tuple[str, ...] = ()
    ) -> Peak:
        """The peak of one stage's ranks, for a config that is known to be composed. `recompute`: modes of the layers, where they are not the config's."""
        sizes, steps = [config.micro_batch_size], [config.accumulation_steps]
        return Peak.of(Composer(self, workload, sizes, recompute).rank_peaks(config, pp_rank, sizes, steps))

    def peaks(self, workload: Workload, table: ConfigTable) -> tuple[Peaks, NDArray[np.bool_]]:
        """The peaks of the rows that are composed, in their order, and which rows these are."""
        composer = Composer(self, workload, table.micro_batch_size)
        names = tuple(Peaks.__dataclass_fields__)
        columns = {name: np.zeros(len(table)) for name in names}
        known = np.zeros(len(table), dtype=np.bool_)
        for layout, rows in layouts(table):
            if self.why_not(workload, layout):
                continue
            peaks = composer.peaks(layout, table.micro_batch_size[rows], table.accumulation_steps[rows])
            known[rows] = True
            for name in names:
                columns[name][rows] = getattr(peaks, name)
        return Peaks(**{name: column[known] for name, column in columns.items()}), known

    def with_checks(self, checks: Sequence[ProfileCheck]) -> Profile:
        """The profile with these checks."""
        return replace(self, checks=tuple(checks))

    def against(self, asked: ProfileRun, run: DryRun, *, is_new: bool = False) -> ProfileCheck:
        """A dry run against what the profile composes; it must compose those from which it was read as well."""
        model, config = asked.workload.model, asked.config
        return ProfileCheck(
            kind=asked.kind,
            config=f"L={model.num_layers} s={asked.workload.seq_len} rank={asked.pp_rank} {config}",
            composed_bytes=self.rank_peak(asked.workload, config, asked.pp_rank, asked.recompute).total_bytes,
            run_bytes=float(run.peak.total_bytes),
            is_new=is_new,
            in_pipeline=config.pp > 1,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "versions": dict(self.versions),
            "fixed": dict(self.fixed),
            "optimizer": self.optimizer,
            "templates": {kind: templates.to_dict() for kind, templates in self.templates.items()},
            "unread": dict(self.unread),
            "degrees": {kind: list(degrees) for kind, degrees in self.degrees.items()},
            "weights": [[w.layer, w.is_first, list(w.shape), w.cut_dim] for w in self.weights],
            "runs": list(self.runs),
            "work": {kind: work.to_dict() for kind, work in self.work.items()},
            "checks": [[c.kind, c.config, c.composed_bytes, c.run_bytes, c.is_new, c.in_pipeline] for c in self.checks],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile | None:
        """The profile of `to_dict`'s values; None for another version of the format."""
        if values.get("version") != VERSION:
            return None
        return cls(
            fingerprint=values["fingerprint"],
            versions=dict(values["versions"]),
            fixed=dict(values["fixed"]),
            optimizer=values["optimizer"],
            templates={kind: Templates.from_dict(part) for kind, part in values["templates"].items()},
            degrees={kind: tuple(degrees) for kind, degrees in values["degrees"].items()},
            weights=tuple(
                ProfiledWeight(layer=layer, is_first=first, shape=tuple(shape), cut_dim=dim)
                for layer, first, shape, dim in values["weights"]
            ),
            runs=tuple(values["runs"]),
            work={kind: Work.from_dict(part) for kind, part in values["work"].items()},
            checks=tuple(
                ProfileCheck(
                    kind=kind, config=config, composed_bytes=composed, run_bytes=run, is_new=is_new, in_pipeline=staged
                )
                for kind, config, composed, run, is_new, staged in values["checks"]
            ),
            unread=dict(values.get("unread", {})),
        )


FIXED = ("precision", "sequence_parallel", "loss", "cp", "ep", "virtual_stages", "compile", "offload")
"""knobs that all runs of a profile share"""


def profile_of(runs: Sequence[tuple[ProfileRun, DryRun]], fingerprint: str) -> Profile:
    """The profile that these dry runs say. Raises `DryRunError` where they cannot be read."""
    sketches: dict[str, list[tuple[int, Sketch, MemoryTrace]]] = {}
    worked: dict[str, list[tuple[int, int, int, DryRun]]] = {}
    for asked, run in runs:
        sizes = (asked.config.tp, asked.config.micro_batch_size, asked.workload.seq_len // asked.config.cp)
        if asked.pp_rank == 0:
            worked.setdefault(asked.kind, []).append((*sizes, run))
        if run.trace is None:
            raise DryRunError("a profile needs dry runs with their traces")
        sketch = sketch_of(
            run.trace,
            b=asked.config.micro_batch_size,
            s=asked.workload.seq_len,
            tp=asked.config.tp,
            sharded=asked.config.zero_stage >= 2,
            element_bytes=ELEMENT_BYTES[asked.config.precision],
            is_later=asked.pp_rank > 0,
        )
        if asked.pp_rank:
            sketch["", "message"] = [message_of(run, b=asked.config.micro_batch_size, s=asked.workload.seq_len)]
        sketches.setdefault(asked.kind, []).append((asked.config.tp, sketch, run.trace))
    templates = {}
    for kind, found in sketches.items():
        found.sort(key=lambda item: item[0])
        one, *more = found
        templates[kind] = templates_of(aligned_sketch(one[1], more[0][1], (one[0], more[0][0])) if more else one[1])
    asked, run = max(runs, key=lambda pair: pair[0].config.sequence_parallel)
    profile = Profile(
        fingerprint=fingerprint,
        versions=dict(run.versions),
        fixed={name: asked.config.value(name) for name in FIXED},
        optimizer=asked.workload.optimizer,
        templates=templates,
        degrees={kind: tuple(tp for tp, _, _ in found) for kind, found in sketches.items()},
        weights=weights_of([(asked.config.tp, run.trace) for asked, run in runs if run.trace and not asked.pp_rank]),
        work={kind: _work(templates, kind, found) for kind, found in worked.items()},
        runs=tuple(f"L={len(asked.recompute)} s={asked.workload.seq_len} {asked.config}" for asked, _ in runs),
    )
    # of a short model not all modes are seen between its first and its last layer
    read = [pair for pair in runs if set(pair[0].recompute) <= set(templates[pair[0].kind].layers)]
    return profile.with_checks([profile.against(asked, run) for asked, run in read])


def _work(templates: Mapping[str, Templates], kind: str, found: Sequence[tuple[int, int, int, DryRun]]) -> Work:
    """The work of a kind of training, with the messages of its later stages where these were run."""
    work = work_of(sorted(found, key=lambda one: one[0]))
    later = templates.get(kind + LATER_STAGE)
    return work if later is None else work.with_message(later.message)
