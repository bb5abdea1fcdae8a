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
"""steps after which it is clear what a step computes: the first may differ, and the last of an
epoch may have less"""
TOKENS_SLACK = 0.02
"""share by which tokens may differ: inputs are often a token shorter than their sequences"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """An optimizer step that a process has done."""

    at_s: float
    """its end, on the node's own monotonic clock"""
    time_s: float
    """seconds since the end of the step before"""
    micro_batches: int
    """forward passes with gradients of the outermost module"""
    sequences: tuple[int, ...]
    """how many sequences it may have trained, the likeliest first; empty: not seen"""
    tokens: int | None
    """how many tokens it trained; None: not seen"""
    backwards: int
    """backward passes"""
    wait_s: float
    """seconds that it waited for data"""
    skipped: bool
    """whether a gradient scaler left the weights as they were"""
    evaluation_s: float
    """seconds in calls of modules without gradients"""
    checkpoint_s: float
    """seconds in which the program saved checkpoints"""


VARYING = 3
"""numbers of sequences that differ between steps, from which they are no batch of the config"""


@final
class ProgramProbe:
    """What has been reported of one attempt."""

    def __init__(self, request: TrialRequest) -> None:
        self._request = request
        self._leader: tuple[int, int] | None = None
        """node and number of the process that is measured"""
        self.is_watching = False
        """whether a process of the program has imported torch under the probe's eyes"""
        self.facts: dict[str, Any] = {}
        """what the measured process trains, as it last said"""
        self.files: dict[str, dict[str, Any]] = {}
        """files outside of the trial's folder, by path: how they were changed, whether they existed
        before, whether they are kept"""
        self.unkept: dict[str, str] = {}
        """those that were there before and cannot be kept, with the reason; the process that is
        about to change one waits to be ended"""
        self.lost: list[str] = []
        """those that could not be put back, each with where it is"""
        self.troubles: list[str] = []
        """what ended the watching"""
        self.has_own_updates = False
        """whether weights change without an optimizer of torch, whose steps cannot be seen"""
        self.ran_out: dict[tuple[int, Any], list[str]] = {}
        """by process: how memory ran out in it, each time that it did"""
        self.peak_bytes: int | None = None
        self.reserved_bytes: int | None = None
        self.steps: list[SeenStep] = []
        self._first: dict[tuple[int, Any], list[SeenStep]] = {}
        """the first steps of each process"""
        self._options: dict[str, tuple[tuple[int, Any], list[Any]]] = {}
        """by the file that a process runs: the first process that told its options, and these"""
        self._places: dict[tuple[int, Any], dict[tuple[Any, ...], int]] = {}
        """how often each process was seen where, as it last said"""

    def shows_life(self, reports: Iterable[Mapping[str, Any]], node: int) -> bool:
        """Whether a report is of something that the program did. Its watch reports even while it
        waits for good: then each process stays at one place. One that is not understood is no
        sign."""
        signs = [r.get("kind") != "watch" or self._has_moved(r, node) for r in reports]
        return any(signs)

    def _has_moved(self, report: Mapping[str, Any], node: int) -> bool:
        try:
            who = node, report.get("pid")
            now = {tuple(place): int(count) for *place, count in report.get("lines", ())}
            before = self._places.get(who)
            self._places[who] = now
        except (TypeError, ValueError):
            return False
        if before is None:
            return True
        return sum(count > before.get(place, 0) for place, count in now.items()) > 1

    def hear(self, reports: Iterable[Mapping[str, Any]], node: int) -> list[SeenStep]:
        """Reports of a node; the steps that they end. Reports that are not understood are left
        out."""
        reports = list(reports)
        if self._leader is None and (
            stepping := [(r.get("rank", 0), r["pid"]) for r in reports if r.get("kind") == "step"]
        ):
            self._leader = (node, min(stepping)[1])
        found: list[SeenStep] = []
        for report in reports:
            who = (node, report.get("pid"))
            match report.get("kind"):
                case "torch":
                    self.is_watching = True
                case "trouble":
                    self.troubles.append(str(report.get("error")))
                case "own_updates":
                    self.has_own_updates = True
                    self.troubles.append(str(report.get("error")))
                case "out_of_memory":
                    self.ran_out.setdefault(who, []).append(
                        f"in {report.get('where')}: {report.get('error')}"
                    )
                case "facts" if self._leader in (None, who):
                    self.facts = {
                        name: value for name, value in report.items() if name not in ("kind", "pid")
                    }
                case "options":
                    first, told = self._options.setdefault(str(report.get("program")), (who, []))
                    told += report.get("options", ()) if first == who else ()
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
                    self._peak(report)
                    steps = [_step(told) for told in report["steps"]]
                    known = self._first.setdefault(who, [])
                    known += steps[: SETTLED - len(known)]
                    if who == self._leader:
                        found += steps
        self.steps += found
        return found

    def _note_file(self, path: str, how: str, existed: bool, kept: bool) -> None:
        """One process's word on a file. Another may have moved it aside before: whoever found it
        there knows that it existed, and whether it is kept."""
        known = self.files.setdefault(path, {"how": how, "existed": existed, "kept": kept})
        if existed:
            known.update(existed=True, kept=kept and (known["kept"] or not known["existed"]))

    def _peak(self, report: Mapping[str, Any]) -> None:
        if (peak := report.get("peak")) is not None:
            self.peak_bytes = max(peak, self.peak_bytes or 0)
        if (reserved := report.get("reserved")) is not None:
            self.reserved_bytes = max(reserved, self.reserved_bytes or 0)

    @property
    def options(self) -> tuple[Mapping[str, Any], ...]:
        """The options of the program that trains, as its parser has them; its launcher's are not
        among them."""
        return tuple(self._options.get(str(self.facts.get("program")), ((), ()))[1])

    @property
    def own_files(self) -> dict[str, str]:
        """Hashes of your files that the program runs, except those that it writes."""
        folder = os.path.dirname(str(self.facts.get("program", "")))
        return {
            name: contents
            for name, contents in (self.facts.get("files") or {}).items()
            if os.path.join(folder, name) not in self.files
        }

    @property
    def typical(self) -> SeenStep | None:
        """A step that computes what most steps do."""
        steps = [step for step in self.steps if step.micro_batches or step.sequences]
        if not steps:
            return None
        of = Counter(
            (step.micro_batches, step.sequences, step.tokens, step.backwards) for step in steps
        )
        usual = of.most_common(1)[0][0]
        return next(
            s for s in steps if (s.micro_batches, s.sequences, s.tokens, s.backwards) == usual
        )

    @property
    def processes(self) -> int:
        """Processes that train together."""
        return int(self.facts.get("world") or self._request.config.world_size)

    def disagreement(self) -> str:
        """How what a step computes differs from the config, in words; empty when it does not, or
        was not seen."""
        step, config, workload = self.typical, self._request.config, self._request.workload
        if step is None:
            return ""
        same_data = config.tp * config.pp * config.cp
        seen = _numbered(step.micro_batches, "micro-batch", "es")
        if step.sequences and not (self.agrees(step) or self._varies):
            each = (
                step.sequences[0] / step.micro_batches if step.micro_batches else step.sequences[0]
            )
            total = step.sequences[0] * self.processes / same_data
            groups = self.processes // same_data or 1
            where = f" on each of {groups} data-parallel ranks" if groups > 1 else ""
            return (
                f"an optimizer step must train global_batch_size={config.global_batch_size} sequences, but the probe observed {seen} of {each:g} sequences"
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
            return f"an optimizer step must have accumulation_steps={config.accumulation_steps} micro-batches of micro_batch_size={config.micro_batch_size}, but the probe observed {seen} of {step.sequences[0] / max(1, step.micro_batches):g}; the program may set its own batch size automatically"
        return ""

    @property
    def fills_by_tokens(self) -> bool:
        """Whether steps have other numbers of sequences than the config, each another one:
        micro-batches are probably filled up to a token limit."""
        step = self.typical
        return step is not None and bool(step.sequences) and self._varies and not self.agrees(step)

    def unevenness(self) -> str:
        """How many sequences another rank trains on, in words, where these are other ones than
        those of the measured rank in each of its first steps."""
        if (self.facts.get("degrees") or {}).get("pp", 1) > 1 or self._leader is None:
            return ""
        own = _counts(self._first.get(self._leader, []))
        for other in map(_counts, self._first.values()):
            pairs = [(a, b) for a, b in zip(own, other, strict=False) if a and b]
            if len(pairs) >= SETTLED - 1 and all(a != b for a, b in pairs):
                return (
                    f"ranks train on different numbers of sequences per step ({pairs[0][0]} on the measured rank, {pairs[0][1]} on another), and the batch counts "
                    "the measured rank's number for all ranks"
                )
        return ""

    @property
    def lengths(self) -> tuple[float, ...]:
        """Tokens per sequence of each step, where both were seen."""
        return tuple(
            step.tokens / step.sequences[0] for step in self.steps if step.tokens and step.sequences
        )

    @property
    def lengths_vary(self) -> bool:
        """Whether sequences have other lengths in other steps, as where each batch is padded to its
        longest; packed ones have as many tokens in each step."""
        totals = [step.tokens for step in self.steps if step.tokens and step.sequences]
        return bool(totals) and all(
            max(each) > (1 + TOKENS_SLACK) * min(each) for each in (totals, self.lengths)
        )

    @property
    def is_packed(self) -> bool:
        """Whether its steps have the config's tokens, in sequences of any length, or each rank has
        a part of every sequence."""
        step = self.typical
        return step is not None and (self._agrees_in_tokens(step) or self._request.config.cp > 1)

    @property
    def _varies(self) -> bool:
        """Whether there are as many micro-batches as the config says, of sizes that differ."""
        is_counted = all(
            step.micro_batches == self._request.config.accumulation_steps for step in self.steps
        )
        return is_counted and len({step.sequences for step in self.steps}) >= VARYING

    @property
    def share(self) -> float:
        """Sequences that one process trains in a step of the config."""
        config = self._request.config
        return config.global_batch_size * config.tp * config.pp * config.cp / self.processes

    def _agrees_in_sequences(self, step: SeenStep) -> bool:
        return any(abs(count - self.share) < 1e-6 * self.share for count in step.sequences)

    def _agrees_in_tokens(self, step: SeenStep) -> bool:
        expected = self.share * self._request.workload.seq_len
        return step.tokens is not None and abs(step.tokens - expected) <= TOKENS_SLACK * expected

    def agrees(self, step: SeenStep) -> bool:
        """Whether a step trains the sequences or the tokens of the config."""
        return self._agrees_in_tokens(step) or self._agrees_in_sequences(step)


def _counts(steps: Iterable[SeenStep]) -> list[int]:
    """Sequences of the first steps; 0: not known."""
    return [step.sequences[0] if step.sequences else 0 for step in steps][:SETTLED]


def _step(told: Mapping[str, Any]) -> SeenStep:
    return SeenStep(
        at_s=float(told["at"]),
        time_s=float(told["s"]),
        micro_batches=int(told["micro"]),
        sequences=tuple(told["sequences"]),
        tokens=told["tokens"],
        backwards=int(told["backwards"]),
        wait_s=float(told["wait_s"]),
        skipped=bool(told["skipped"]),
        evaluation_s=_seconds(told, "evaluation"),
        checkpoint_s=_seconds(told, "checkpoint"),
    )


def _seconds(told: Mapping[str, Any], phase: str) -> float:
    return float((told.get("phases") or {}).get(phase, (0.0,))[0])


def _numbered(count: int, what: str, plural: str) -> str:
    return f"{count} {what}{plural if count != 1 else ''}"
