"""What the probe says of one attempt: its reports in, steps and facts out. No clock, no I/O.

Every process that trains reports each of its steps. The one with the lowest rank among those that
report first is measured, as all take part in every step; the memory is the fullest one's. What was
computed in a step is compared with the config:

    sequences    expected on each process: global_batch_size x tp x pp x cp / processes; tokens: that x seq_len
    micro-batch  accumulation_steps of micro_batch_size, where no pipeline cuts them anew
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from autotune.ports import TrialRequest

SETTLED = 3
"""steps needed to know what a step computes; the first may differ, and the last of an epoch may
have less data"""
TOKENS_SLACK = 0.02
"""relative difference allowed between observed and expected tokens: inputs are often one token
shorter than their sequences"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """An optimizer step that one process completed."""

    at_s: float
    """end of the step, seconds on the node's own monotonic clock"""
    time_s: float
    """seconds since the end of the previous step"""
    micro_batches: int
    """number of forward passes with gradients of the outermost module"""
    sequences: tuple[int, ...]
    """possible numbers of sequences in the step, most likely first; empty if not observed"""
    tokens: int | None
    """number of tokens in the step; None if not observed"""
    backwards: int
    """number of backward passes"""
    wait_s: float
    """seconds spent waiting for data"""
    skipped: bool
    """whether a gradient scaler skipped the weight update"""
    evaluation_s: float
    """seconds in calls of modules without gradients (evaluation)"""
    checkpoint_s: float
    """seconds spent saving checkpoints"""


VARYING = 3
"""number of different sequence counts among the steps from which the batch is considered
variable"""


@final
class ProgramProbe:
    """Collects the probe's reports of one attempt."""

    def __init__(self, request: TrialRequest) -> None:
        self._request = request
        self._leader: tuple[int, int] | None = None
        """(node, process number) of the measured process: the lowest rank among the first to report
        steps"""
        self.is_watching = False
        """whether a process of the program has imported torch with the probe active"""
        self.facts: dict[str, Any] = {}
        """latest facts about the measured process: model, degrees, versions, files"""
        self.files: dict[str, dict[str, Any]] = {}
        """changed files outside the trial's folder, by path: how they were changed, whether they
        existed before, whether a copy is kept"""
        self.unkept: dict[str, str] = {}
        """reason by path, for existing files of which no copy can be kept; the process that is
        about to change one waits to be ended"""
        self.lost: list[str] = []
        """files that could not be restored, each with the place of its copy"""
        self.troubles: list[str] = []
        """errors that ended the observation"""
        self.has_own_updates = False
        """whether weights change without an optimizer of torch, so that steps cannot be observed"""
        self.ran_out: dict[tuple[int, Any], list[str]] = {}
        """by process: where and how it ran out of memory, one text per occurrence"""
        self.peak_bytes: int | None = None
        self.reserved_bytes: int | None = None
        self.steps: list[SeenStep] = []
        self._first: dict[tuple[int, Any], list[SeenStep]] = {}
        """the first `SETTLED` steps of each process"""
        self._weights: dict[tuple[int, Any], str] = {}
        """hash of some weights after the first step, by process"""
        self._options: dict[str, tuple[tuple[int, Any], list[Any]]] = {}
        """by program file: the first process that reported its options, and these options"""
        self._sampled_places: dict[tuple[int, Any], dict[tuple[Any, ...], int]] = {}
        """latest count of stack samples by place, for each process"""

    def shows_life(self, reports: Iterable[Mapping[str, Any]], node: int) -> bool:
        """Whether the reports show that the program is active. The watch keeps reporting while a
        program is blocked, but then each process is sampled at one place only. Malformed reports do
        not count."""
        signs = [r.get("kind") != "watch" or self._has_moved(r, node) for r in reports]
        return any(signs)

    def _has_moved(self, report: Mapping[str, Any], node: int) -> bool:
        try:
            process = node, report.get("pid")
            counts = {tuple(place): int(count) for *place, count in report.get("lines", ())}
            before = self._sampled_places.get(process)
            self._sampled_places[process] = counts
        except (TypeError, ValueError):
            return False
        if before is None:
            return True
        return sum(count > before.get(place, 0) for place, count in counts.items()) > 1

    def hear(self, reports: Iterable[Mapping[str, Any]], node: int) -> list[SeenStep]:
        """Takes reports from a node. Returns the steps of the measured process. Malformed reports
        are ignored."""
        reports = list(reports)
        if self._leader is None and (
            stepping := [(r.get("rank", 0), r["pid"]) for r in reports if r.get("kind") == "step"]
        ):
            self._leader = (node, min(stepping)[1])
        new_steps: list[SeenStep] = []
        for report in reports:
            process = (node, report.get("pid"))
            match report.get("kind"):
                case "torch":
                    self.is_watching = True
                case "trouble":
                    self.troubles.append(str(report.get("error")))
                case "own_updates":
                    self.has_own_updates = True
                    self.troubles.append(str(report.get("error")))
                case "out_of_memory":
                    self.ran_out.setdefault(process, []).append(
                        f"in {report.get('where')}: {report.get('error')}"
                    )
                case "facts" if self._leader in (None, process):
                    self.facts = {
                        name: value for name, value in report.items() if name not in ("kind", "pid")
                    }
                case "replica":
                    self._weights[process] = str(report.get("weights"))
                case "options":
                    first, options = self._options.setdefault(
                        str(report.get("program")), (process, [])
                    )
                    options += report.get("options", ()) if first == process else ()
                case "files":
                    for path, how, existed, kept in report.get("files", ()):
                        self._note_file(str(path), how, bool(existed), bool(kept))
                case "unkept":
                    self.unkept |= {
                        str(file): str(report.get("why")) for file in report.get("files", ())
                    }
                case "lost":
                    self.lost += map(str, report.get("files", ()))
                case "step":
                    self._note_peak(report)
                    steps = [_step(step) for step in report["steps"]]
                    known = self._first.setdefault(process, [])
                    known += steps[: SETTLED - len(known)]
                    if process == self._leader:
                        new_steps += steps
        self.steps += new_steps
        return new_steps

    def _note_file(self, path: str, how: str, existed: bool, kept: bool) -> None:
        """Merges one process's report on a file. Another process may have moved the file aside
        before, so the report of the process that found it there decides whether it existed and a
        copy is kept."""
        known = self.files.setdefault(path, {"how": how, "existed": existed, "kept": kept})
        if existed:
            known.update(existed=True, kept=kept and (known["kept"] or not known["existed"]))

    def _note_peak(self, report: Mapping[str, Any]) -> None:
        if (peak := report.get("peak")) is not None:
            self.peak_bytes = max(peak, self.peak_bytes or 0)
        if (reserved := report.get("reserved")) is not None:
            self.reserved_bytes = max(reserved, self.reserved_bytes or 0)

    @property
    def options(self) -> tuple[Mapping[str, Any], ...]:
        """Parsed options of the training program, without its launcher's."""
        return tuple(self._options.get(str(self.facts.get("program")), ((), ()))[1])

    @property
    def own_files(self) -> dict[str, str]:
        """Hashes by name of the user's files that the program runs, without those that it
        writes."""
        folder = os.path.dirname(str(self.facts.get("program", "")))
        return {
            name: contents
            for name, contents in (self.facts.get("files") or {}).items()
            if os.path.join(folder, name) not in self.files
        }

    @property
    def typical(self) -> SeenStep | None:
        """A step with the most frequent batch; None if no batch was observed."""
        steps = [step for step in self.steps if step.micro_batches or step.sequences]
        if not steps:
            return None
        counts = Counter(
            (step.micro_batches, step.sequences, step.tokens, step.backwards) for step in steps
        )
        most_frequent = counts.most_common(1)[0][0]
        return next(
            s
            for s in steps
            if (s.micro_batches, s.sequences, s.tokens, s.backwards) == most_frequent
        )

    @property
    def processes(self) -> int:
        """Number of processes that train together: the observed world size, else the config's."""
        return int(self.facts.get("world") or self._request.config.world_size)

    def disagreement(self) -> str:
        """How the observed batch differs from the config's, as a message; empty if it agrees or was
        not observed."""
        step, config, workload = self.typical, self._request.config, self._request.workload
        if step is None:
            return ""
        same_data = config.tp * config.pp * config.cp
        micro_batches_text = _numbered(step.micro_batches, "micro-batch", "es")
        if step.sequences and not (self.agrees(step) or self._has_varying_batches):
            each = (
                step.sequences[0] / step.micro_batches if step.micro_batches else step.sequences[0]
            )
            total = step.sequences[0] * self.processes / same_data
            groups = self.processes // same_data or 1
            where = f" on each of {groups} data-parallel ranks" if groups > 1 else ""
            return (
                f"an optimizer step must train global_batch_size={config.global_batch_size} sequences, but the probe observed {micro_batches_text} of {each:g} sequences"
                f"{where}, which is {total:g} (of {workload.seq_len:,} tokens by the spec{f'; {step.tokens:,} tokens were observed on one rank' if step.tokens else ''})"
            )
        counts = {step.micro_batches, step.backwards}
        sizes = {size / step.micro_batches for size in step.sequences if step.micro_batches}
        if (
            config.pp == 1
            and step.sequences
            and same_data * config.dp == self.processes
            and config.accumulation_steps not in counts
            and config.micro_batch_size not in sizes
            and self._agrees_in_sequences(step)
        ):
            return f"an optimizer step must have accumulation_steps={config.accumulation_steps} micro-batches of micro_batch_size={config.micro_batch_size}, but the probe observed {micro_batches_text} of {step.sequences[0] / max(1, step.micro_batches):g}; the program may set its own batch size automatically"
        return ""

    @property
    def fills_by_tokens(self) -> bool:
        """Whether the number of sequences varies between steps and differs from the config's,
        probably because micro-batches are filled up to a token limit."""
        step = self.typical
        return (
            step is not None
            and bool(step.sequences)
            and self._has_varying_batches
            and not self.agrees(step)
        )

    @property
    def is_split(self) -> bool:
        """Whether the weights of processes differ after the first step, although no library shards
        them."""
        return len(set(self._weights.values())) > 1

    def unevenness(self) -> str:
        """How ranks that should train replicas of the model differ, as a message: in their weights, or
        in the number of sequences in each of the first steps. Empty if they do not."""
        if (self.facts.get("degrees") or {}).get("pp", 1) > 1 or self._leader is None:
            return ""
        config = self._request.config
        if self.is_split and config.tp * config.pp * config.ep == 1:
            return (
                "after an optimizer step the ranks have different weights, so they are not data-parallel replicas: the program splits the model over its ranks "
                "(pipeline or tensor parallelism), or does not average gradients. Batch, memory and tokens/s are counted as for replicas"
            )
        measured = _counts(self._first.get(self._leader, []))
        for other in map(_counts, self._first.values()):
            pairs = [(a, b) for a, b in zip(measured, other, strict=False) if a and b]
            if len(pairs) >= SETTLED - 1 and all(a != b for a, b in pairs):
                return (
                    f"ranks train on different numbers of sequences per step ({pairs[0][0]} on the measured rank, {pairs[0][1]} on another), and the batch counts "
                    "the measured rank's number for all ranks"
                )
        return ""

    @property
    def lengths(self) -> tuple[float, ...]:
        """Tokens per sequence of each step in which both were observed."""
        return tuple(
            step.tokens / step.sequences[0] for step in self.steps if step.tokens and step.sequences
        )

    @property
    def lengths_vary(self) -> bool:
        """Whether sequence lengths vary between steps, for example by padding each batch to its
        longest sequence. False for packed batches, which have the same number of tokens in each
        step."""
        totals = [step.tokens for step in self.steps if step.tokens and step.sequences]
        return bool(totals) and all(
            max(each) > (1 + TOKENS_SLACK) * min(each) for each in (totals, self.lengths)
        )

    @property
    def is_packed(self) -> bool:
        """Whether steps have the config's number of tokens whatever the sequences' lengths, or
        sequences are split over ranks (context parallelism)."""
        step = self.typical
        return step is not None and (self._agrees_in_tokens(step) or self._request.config.cp > 1)

    @property
    def _has_varying_batches(self) -> bool:
        """Whether every step has the config's number of micro-batches, but their sizes differ."""
        is_counted = all(
            step.micro_batches == self._request.config.accumulation_steps for step in self.steps
        )
        return is_counted and len({step.sequences for step in self.steps}) >= VARYING

    @property
    def share(self) -> float:
        """Number of sequences per process in a step of the config."""
        config = self._request.config
        return config.global_batch_size * config.tp * config.pp * config.cp / self.processes

    def _agrees_in_sequences(self, step: SeenStep) -> bool:
        return any(abs(count - self.share) < 1e-6 * self.share for count in step.sequences)

    def _agrees_in_tokens(self, step: SeenStep) -> bool:
        expected = self.share * self._request.workload.seq_len
        return step.tokens is not None and abs(step.tokens - expected) <= TOKENS_SLACK * expected

    def agrees(self, step: SeenStep) -> bool:
        """Whether a step has the config's number of sequences or of tokens, per process."""
        return self._agrees_in_tokens(step) or self._agrees_in_sequences(step)


def _counts(steps: Iterable[SeenStep]) -> list[int]:
    """Number of sequences of each of the first steps; 0 if unknown."""
    return [step.sequences[0] if step.sequences else 0 for step in steps][:SETTLED]


def _step(report: Mapping[str, Any]) -> SeenStep:
    return SeenStep(
        at_s=float(report["at"]),
        time_s=float(report["s"]),
        micro_batches=int(report["micro"]),
        sequences=tuple(report["sequences"]),
        tokens=report["tokens"],
        backwards=int(report["backwards"]),
        wait_s=float(report["wait_s"]),
        skipped=bool(report["skipped"]),
        evaluation_s=_seconds(report, "evaluation"),
        checkpoint_s=_seconds(report, "checkpoint"),
    )


def _seconds(step: Mapping[str, Any], phase: str) -> float:
    return float((step.get("phases") or {}).get(phase, (0.0,))[0])


def _numbered(count: int, noun: str, plural: str) -> str:
    return f"{count} {noun}{plural if count != 1 else ''}"
