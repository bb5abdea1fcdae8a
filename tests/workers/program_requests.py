"""Trials of a torchrun script on two nodes with one rank each, and of a program that trains nothing
on one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.ports import TrialRequest
from tests.workers.process import program
from tests.workers.requests import PATIENT, request

GLOO = Path(__file__).with_name("gloo_program.py")
METRICS = {
    "step": r"^iteration (\d+):",
    "loss": r"loss = ([\d.]+)",
    "step_time_ms": r": ([\d.]+) ms",
}


def on_two_nodes(
    number: int, *, endless: bool = False, cwd: Path = GLOO.parent, **options: Any
) -> TrialRequest:
    """A trial on two nodes of one rank each; `endless`: until it is ended."""
    argv = [
        "torchrun",
        GLOO.name,
        "--micro-batch={micro_batch_size}",
        "--steps={steps}",
        "--ranks={dp}",
    ]
    if endless:
        argv += ["--step-s=0.2"]
    return request(
        number,
        dp=2,
        trainer="command",
        config={"precision": "bf16"},
        with_log=True,
        trainer_options={"argv": argv, "cwd": str(cwd), "metrics": METRICS, **options},
        measure=replace(PATIENT, min_steps=5000, max_steps=5000, trial_timeout_s=1500.0)
        if endless
        else PATIENT,
        cluster={"num_nodes": 2, "gpus_per_node": 1},
    )


def on_one_node(number: int, *arguments: str) -> TrialRequest:
    """A trial on one rank."""
    argv = [
        sys.executable,
        program.__file__,
        "--micro-batch={micro_batch_size}",
        "--steps={steps}",
        *arguments,
    ]
    options = {"argv": argv, "metrics": METRICS}
    return request(
        number, dp=1, trainer="command", config={"precision": "bf16"}, trainer_options=options
    )
