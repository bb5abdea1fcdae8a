"""Any program: placeholders, knobs that would not reach it, and patterns over its log."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError, SpecError
from autotune.spec import FIELDS, ParallelConfig
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import StepMetrics, trainer
from autotune.trainers.patterns import MAX_SEARCHED, compile_pattern

ALL = ["train", *(f"--{name}={{{name}}}" for name in FIELDS)]
METRICS = {
    "step": r"^step (\d+)",
    "step_time_ms": r"time ([\d.]+)ms",
    "loss": r"loss ([-\d.naif]+)",
    "peak_memory_gib": r"mem ([\d.]+)",
}


class TestCommand(TrainerContract):
    trainer = "command"
    options: ClassVar[dict[str, Any]] = {"argv": ALL, "metrics": METRICS}
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        "step 7: loss 4.0863, time 561.5ms, mem 2.5": StepMetrics(
            step=7, loss=4.0863, step_time_s=0.5615, peak_memory_bytes=2.5 * 2**30
        ),
        "step 8": None,
        "loss nanana": None,
    }

    def launch(self, argv: list[str], config: ParallelConfig | None = None, **options: Any) -> tuple[str, ...]:
        config = config or ParallelConfig(dp=8, micro_batch_size=8)
        return trainer("command").launch(WORKLOAD, config, {"argv": argv, **options}).argv

    def test_placeholders(self) -> None:
        argv = [
            "x",
            "{dp}",
            "{micro_batch_size}/{seq_len}",
            "{{}}",
            "{compile}",
            "{nproc_per_node}",
            "{hidden_size}",
            "{model}",
        ]
        assert self.launch(argv)[1:] == ("8", "8/2048", "{}", "false", "8", "1024", "contract-llama")

    def test_a_knob_that_no_placeholder_carries_is_refused(self) -> None:
        config = ParallelConfig(tp=2, dp=4, micro_batch_size=4, accumulation_steps=4, recompute="full")
        with pytest.raises(ExportError, match=r"recompute=full: argv and env have no placeholder \{recompute\}"):
            self.launch(["x", "{tp}", "{world_size}", "{micro_batch_size}", "{global_batch_size}"], config)

    def test_environment_carries_knobs_too(self) -> None:
        launch = trainer("command").launch(
            WORKLOAD,
            ParallelConfig(dp=8, micro_batch_size=8),
            {"argv": ["x"], "env": {"DP": "{dp}", "MBS": "{micro_batch_size}"}},
        )
        assert launch.env == {"DP": "8", "MBS": "8"}

    @pytest.mark.parametrize("text", ["{dp!r}", "{dp:>9}", "{dp.real}", "{dp[0]}", "{", "{}", "{0}"])
    def test_placeholders_are_plain_names(self, text: str) -> None:
        with pytest.raises(SpecError):
            self.launch(["x", text])

    def test_unknown_placeholders_are_refused_with_the_nearest(self) -> None:
        with pytest.raises(SpecError, match="did you mean micro_batch_size"):
            self.launch(["{dp}", "{micro_batch_size}", "{microbatch_size}"])

    def test_a_missing_argv_is_refused(self) -> None:
        with pytest.raises(ExportError, match="argv is not set"):
            trainer("command").launch(WORKLOAD, ParallelConfig())

    def test_without_metrics_json_lines_are_read(self) -> None:
        read = trainer("command").reader({"argv": ["x"]})
        assert read('INFO {"step": 2, "step_time_s": 0.5, "loss": NaN, "other": [1]}') is not None
        assert read('{"step": 2}') is None
        assert read('{"step_time_s": true}') is None

    def test_unknown_metrics_are_refused_with_the_nearest(self) -> None:
        with pytest.raises(SpecError, match="did you mean step_time_s"):
            trainer("command").reader({"metrics": {"step_times": "(x)"}})


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(a|a)*b(c)",
        r"(.*)*(x)",
        r".*.*.*(x)",
        r"(?:x{1,3}){1,9}(y)",
        r"(x)\1",
        r".*[^y]*(x)",
        r"\d*y?\d*(x)",
        r"no group",
        "",
        "(",
        "(a)" * 200,
    ],
)
def test_patterns_of_exponential_time_are_refused(pattern: str) -> None:
    with pytest.raises(SpecError):
        compile_pattern(pattern, field="trainer.metrics.loss")


@pytest.mark.parametrize(
    "pattern", [r"loss=([\d.]+)", r"step\s+(\d+).*?time: *([\d.]+)", r"tps: (\d{1,3}(?:,\d{3})*)", r"a|b(c)"]
)
def test_plain_patterns_are_accepted(pattern: str) -> None:
    assert isinstance(compile_pattern(pattern, field="x"), re.Pattern)


def test_the_slowest_accepted_pattern_ends() -> None:
    pattern = compile_pattern(r"[^x]*1.*(x)", field="x")
    assert pattern.search("1" * MAX_SEARCHED) is None
