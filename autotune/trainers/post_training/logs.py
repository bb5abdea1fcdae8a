"""Logs of post-trainers by phase: what verl, NeMo-RL, OpenRLHF and TRL print of each step.

    verl 0.9         step:3 - timing_s/gen:144.1 - timing_s/update_actor:203.0 - response_length/mean:1402.5 - ...     (`LocalLogger`, numbers may stand in np.float64(...))
    NeMo-RL 0.4      a block per step: Step 3/100, then "- Mean Generation Length: 523.1", "- Total step time: 12.3s", "- policy_training: 3.4s (27.1%)"
    OpenRLHF 0.11    Global step 3: {'timing/generation': 144.1, 'timing/ppo_train': 203.0, 'response_length': 1402.5, ...}
    TRL 1.16         {'loss': 0.0, 'step_time': 12.3, 'completions/mean_length': 523.1, ...}, a dictionary per logged step

Phases have the names of `PhaseParts`; `step` is the whole step. What a trainer prints of two things
under one name stands under the first of them, and TRL prints the step alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import final

from autotune.trainers.logs.step_metrics import MAX_LINE, StepMetrics

_NUMBER = r"(?:np\.float\d+\()?'?(-?[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)"
_VERL_STEP = re.compile(r"(?:^|[\s)])step:(\d+) - ")
_VERL_FIELD = re.compile(r"(?:^| - )([A-Za-z_][\w/]*):" + _NUMBER)
_DICT_FIELD = re.compile(r"'([A-Za-z_][\w/ .]*)': " + _NUMBER)
_OPENRLHF_STEP = re.compile(r"Global step (\d+): \{")
_NEMO_STEP = re.compile(r"Step (\d+)/\d+")
_NEMO_FIELD = re.compile(r"[•*-]\s*([A-Za-z_][\w/ ]*?):\s*" + _NUMBER)

NAMES = {
    # verl
    "timing_s/gen": "generation", "timing_s/reward": "reward", "timing_s/old_log_prob": "log_prob", "timing_s/ref": "reference", "timing_s/values": "values",
    "timing_s/update_actor": "update", "timing_s/update_critic": "update_critic", "timing_s/update_weights": "refit", "timing_s/step": "step",
    "response_length/mean": "response_mean", "response_length/max": "response_max", "response_length/min": "response_min",
    "prompt_length/mean": "prompt_mean", "prompt_length/max": "prompt_max", "perf/total_num_tokens": "tokens", "perf/max_memory_reserved_gb": "memory_gib",
    "actor/pg_loss": "loss", "actor/grad_norm": "grad_norm",
    # NeMo-RL
    "generation": "generation", "policy_training": "update", "policy_and_reference_logprobs": "log_prob", "value_training": "update_critic",
    "prepare_for_generation/total": "refit", "weight_sync": "refit", "exposed_generation": "waiting", "reward": "reward", "Total step time": "step",
    "Mean Generation Length": "response_mean", "Loss": "loss",
    # OpenRLHF
    "timing/generation": "generation", "timing/make_experience": "log_prob", "timing/ppo_train": "update", "timing/broadcast": "refit", "timing/step_total": "step",
    "response_length": "response_mean", "policy_loss": "loss",
    # TRL
    "step_time": "step", "completions/mean_length": "response_mean", "completions/max_length": "response_max", "completions/min_length": "response_min",
    "loss": "loss", "grad_norm": "grad_norm",
}  # fmt: skip
"""what each printed name means"""
PHASES = (
    "generation",
    "reward",
    "log_prob",
    "reference",
    "values",
    "update",
    "update_critic",
    "refit",
    "waiting",
)


@final
@dataclass(frozen=True, slots=True)
class PhaseLog:
    """What a log printed of its steps."""

    steps: tuple[dict[str, float], ...]
    """of each step what it printed, by name"""

    def values(self, name: str) -> list[float]:
        """What the steps printed under a name; the first step, which compiles and loads, is left
        out where there are three or more."""
        found = [step[name] for step in self.steps if name in step]
        return found[1:] if len(found) > 2 else found

    def median(self, name: str) -> float | None:
        """The median over the steps; None where nothing was printed."""
        found = self.values(name)
        return median(found) if found else None

    def largest(self, name: str) -> float | None:
        """The largest of all steps; None where nothing was printed."""
        return max((step[name] for step in self.steps if name in step), default=None)


def read_phases(lines: Iterable[str]) -> PhaseLog:
    """The steps of a log of any of the four."""
    steps: dict[int, dict[str, float]] = {}
    block = 0
    for line in lines:
        if (found := phases_of_line(line)) is not None:
            number, values = found
            steps.setdefault(number or len(steps) + 1, {}).update(values)
        elif header := _NEMO_STEP.search(line[:MAX_LINE]):
            block = int(header[1])
        elif block and (one := _of_block(line)):
            steps.setdefault(block, {}).update(one)
    return PhaseLog(
        tuple(
            _whole(values)
            for _, values in sorted(steps.items())
            if "step" in values or "update" in values
        )
    )


def phases_of_line(line: str) -> tuple[int, dict[str, float]] | None:
    """(number of the step, or 0; what it says) of a line that says all of a step; None for other
    lines."""
    line = line[: MAX_LINE * 4]
    if header := _VERL_STEP.search(line):
        fields = _VERL_FIELD.findall(line[header.end() - 3 :])
        return int(header[1]), _named(fields)
    if header := _OPENRLHF_STEP.search(line):
        return int(header[1]), _named(_DICT_FIELD.findall(line))
    if "'step_time': " in line and "'completions/" in line:
        return 0, _named(_DICT_FIELD.findall(line))
    return None


def step_metrics_of(line: str) -> StepMetrics | None:
    """The step metrics of a line that says all of a step."""
    found = phases_of_line(line)
    if found is None:
        return None
    number, values = found
    return StepMetrics(
        step=number or None,
        step_time_s=values.get("step"),
        loss=values.get("loss"),
        grad_norm=values.get("grad_norm"),
        peak_memory_bytes=values["memory_gib"] * 2**30 if "memory_gib" in values else None,
    )


def _named(fields: Iterable[tuple[str, str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in fields:
        if (meaning := NAMES.get(name)) and meaning not in found:
            found[meaning] = float(text)
    return found


def _of_block(line: str) -> dict[str, float]:
    match = _NEMO_FIELD.search(line[:MAX_LINE])
    return _named([(match[1].strip(), match[2])]) if match else {}


def _whole(values: dict[str, float]) -> dict[str, float]:
    """With the update of policy and critic together, and the generated tokens where all tokens and
    both mean lengths are printed."""
    found = dict(values)
    if "update_critic" in found and "update" in found:
        found["update"] += found["update_critic"]
    if {"tokens", "prompt_mean", "response_mean"} <= found.keys() and found["response_mean"] > 0:
        found["response_tokens"] = found["tokens"] / (
            1.0 + found["prompt_mean"] / found["response_mean"]
        )
    return found
