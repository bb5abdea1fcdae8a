"""Any program: placeholders, knobs that would not reach it, and patterns over its log."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError, SpecError
from autotune.spec import FIELDS, ParallelConfig
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import StepMetrics, trainer
from autotune.trainers.logs.patterns import MAX_SEARCHED, compile_pattern

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
            step=7,
            loss=4.0863,
            step_time_s=0.5615,
            peak_memory_bytes=2.5 * 2**30,
            resolution_s=1e-4,
        ),
        "step 8": StepMetrics(step=8),
        "loss nanana": None,
    }

    def launch(
        self, argv: list[str], config: ParallelConfig | None = None, **options: Any
    ) -> tuple[str, ...]:
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
        assert self.launch(argv)[1:] == (
            "8",
            "8/2048",
            "{}",
            "false",
            "8",
            "1024",
            "contract-llama",
        )

    def test_numbers_are_meant_as_they_are_written(self) -> None:
        argv = ["x", "{world_size}", "{micro_batch_size}", "--lr", 0.1, "--steps", 20]
        launch = trainer("command").launch(
            WORKLOAD,
            ParallelConfig(dp=8, micro_batch_size=8),
            {"argv": argv, "env": {"OMP_NUM_THREADS": 1}},
        )
        assert launch.argv[3:] == ("--lr", "0.1", "--steps", "20")
        assert launch.env["OMP_NUM_THREADS"] == "1"

    @pytest.mark.parametrize(
        ("options", "field", "message"),
        [
            (
                {"argv": ["x", None]},
                "trainer.argv",
                "argument 1 must be text or a number, but is null",
            ),
            (
                {"argv": ["x", True]},
                "trainer.argv",
                "argument 1 must be text or a number, but is true",
            ),
            (
                {"argv": ["x", "y" * 5000]},
                "trainer.argv",
                "argument 1 must have at most 4096 characters",
            ),
            ({"argv": ["x"] * 600}, "trainer.argv", "at most 512 arguments, but has 600"),
            (
                {"argv": ["x"], "env": {"A": False}},
                "trainer.env.A",
                "the variable A must be text or a number",
            ),
        ],
    )
    def test_what_is_no_text_is_named(
        self, options: dict[str, Any], field: str, message: str
    ) -> None:
        with pytest.raises(SpecError, match=re.escape(message)) as refused:
            trainer("command").check_options(trainer("command").checked(options), ())
        assert refused.value.field == field

    def test_an_interpreter_that_is_named_starts_the_program(self) -> None:
        argv = ["python", "x.py", "{world_size}", "{micro_batch_size}"]
        assert self.launch(argv, python="/usr/bin/python3.11")[0] == "/usr/bin/python3.11"
        assert self.launch(argv, python="/shared/env")[0] == "python"
        assert self.launch(["torchrun", *argv[1:]], python="/usr/bin/python3.11")[0] == "torchrun"

    def test_placeholders_of_the_node_that_is_started(self) -> None:
        argv = [
            "x",
            "{micro_batch_size}",
            "{world_size}",
            "{node_rank}",
            "{master_addr}:{master_port}",
        ]
        assert self.launch(argv)[3:] == ("0", "127.0.0.1:@master-port@"), "one node meets nobody"
        two = trainer("command").launch(
            WORKLOAD, ParallelConfig(dp=16, micro_batch_size=4), {"argv": argv}
        )
        assert two.is_spread
        assert two.on_node(1, master_addr="n0", master_port=7).argv[3:] == ("1", "n0:7")

    def test_a_command_that_names_no_node_is_told_by_the_environment(self) -> None:
        argv = ["torchrun", "train.py", "{micro_batch_size}", "{world_size}"]
        one = trainer("command").launch(
            WORKLOAD, ParallelConfig(dp=8, micro_batch_size=8), {"argv": argv}
        )
        assert one.env == {}
        options = {"argv": argv, "env": {"PET_NPROC_PER_NODE": "4"}}
        two = trainer("command").launch(
            WORKLOAD, ParallelConfig(dp=16, micro_batch_size=4), options
        )
        assert two.is_spread, "an export asks for what a trial is told"
        assert two.env["PET_NPROC_PER_NODE"] == "4", "what the spec says wins"
        told = two.on_node(1, master_addr="n0", master_port=7).env
        assert (told["PET_NNODES"], told["PET_NODE_RANK"], told["MASTER_ADDR"]) == ("2", "1", "n0")

    def test_a_knob_that_no_placeholder_carries_is_refused_without_an_option_that_it_lacks(
        self,
    ) -> None:
        said = r"recompute=full: argv, env, files and overrides have no placeholder \{recompute\}"
        with pytest.raises(ExportError, match=said) as caught:
            self.launch(
                ["x", "{dp}", "{micro_batch_size}"],
                ParallelConfig(dp=8, micro_batch_size=8, recompute="full"),
            )
        assert "nearest=true" not in caught.value.remedy
        with pytest.raises(ExportError, match="argv is not set"):
            trainer("command").launch(WORKLOAD, ParallelConfig())

    def test_a_program_that_divides_the_batch_of_all_ranks_receives_the_micro_batch(self) -> None:
        argv = ["x", "{dp}", "{global_batch_size}", "{accumulation_steps}"]
        config = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2)
        assert self.launch(argv, config) == ("x", "8", "64", "2")
        with pytest.raises(
            ExportError,
            match=r"micro_batch_size=4: argv, env, files and overrides have no placeholder",
        ):
            self.launch(argv[:3], config)

    def test_environment_carries_knobs_too(self) -> None:
        launch = trainer("command").launch(
            WORKLOAD,
            ParallelConfig(dp=8, micro_batch_size=8),
            {"argv": ["x"], "env": {"DP": "{dp}", "MBS": "{micro_batch_size}"}},
        )
        assert launch.env == {"DP": "8", "MBS": "8"}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("{accumulation_steps * dp}", "16"),
            ("--batch={micro_batch_size*accumulation_steps*dp}", "--batch=64"),
            ("{(dp + 1) // 2}x{dp % 3}", "4x2"),
            ("{-dp - 2}", "-10"),
        ],
    )
    def test_arithmetic(self, text: str, expected: str) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2)
        argv = self.launch(
            ["x", "{dp}", "{micro_batch_size}", "{accumulation_steps}", text], config
        )
        assert argv[-1] == expected

    def test_a_knob_inside_arithmetic_is_carried(self) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2)
        assert self.launch(
            ["x", "{accumulation_steps * dp}", "{micro_batch_size * 2}"], config
        ) == ("x", "16", "8")

    @pytest.mark.parametrize(
        "text",
        [
            "{dp / 2}",
            "{dp ** 2}",
            "{dp * 0.5}",
            "{dp if dp else 1}",
            "{len(dp)}",
            "{dp.real + 1}",
            "{dp, 1}",
            "{True + dp}",
            "{2 * 3}",
            "{dp +}",
            "{__import__('os')}",
            "{" + "dp + " * 100 + "dp}",
        ],
    )
    def test_only_whole_number_arithmetic_over_names_is_allowed(self, text: str) -> None:
        with pytest.raises(SpecError) as caught:
            self.launch(["x", text])
        assert caught.value.remedy or "at most 200 characters" in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "law"),
        [
            ("{dp * microbatch_size}", "did you mean micro_batch_size"),
            ("{microbatch_size}", "did you mean micro_batch_size"),
            ("{precision * 2}", "needs whole numbers, but precision is 'bf16'"),
            ("{compile + 1}", "needs whole numbers, but compile is False"),
            ("{dp // zero_stage}", "divides by zero for dp=8, zero_stage=0"),
            ("{" + "hidden_size * " * 8 + "dp}", "must be below 2^63"),
        ],
    )
    def test_what_a_placeholder_cannot_be_written_as_is_refused(self, text: str, law: str) -> None:
        with pytest.raises(SpecError, match=re.escape(law)):
            self.launch(["x", "{dp}", "{micro_batch_size}", text])

    def test_values_say_what_a_value_is_written_as_and_others_pass_through(self) -> None:
        argv = ["x", "{dp}", "--type={precision}", "{recompute}"]
        values = {
            "precision": {"bf16": "bfloat16"},
            "recompute": {"full": "--checkpoint", "none": None},
        }
        config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
        options = {"argv": [*argv, "{micro_batch_size}", "{accumulation_steps}"], "values": values}
        launch = trainer("command").launch(WORKLOAD, config, options)
        assert launch.argv == ("x", "8", "--type=bfloat16", "2", "4")
        full = replace(config, recompute="full", precision="fp16")
        assert trainer("command").launch(WORKLOAD, full, options).argv[2:4] == (
            "--type=fp16",
            "--checkpoint",
        )

    @pytest.mark.parametrize("keys", [(True, False), ("true", "false")])
    def test_a_flag_is_present_or_absent_in_arguments_and_variables(
        self, keys: tuple[Any, Any]
    ) -> None:
        options = {
            "argv": ["x", "{dp}", "{flash}"],
            "env": {"FLASH": "{flash}"},
            "values": {"flash": dict(zip(keys, ("--flash", None), strict=True))},
        }
        told = {}
        for flash in (True, False):
            config = ParallelConfig(dp=8, extra={"flash": flash})
            launch = trainer("command").launch(WORKLOAD, config, options)
            told[flash] = launch.argv[2:], dict(launch.env)
        assert told == {True: (("--flash",), {"FLASH": "--flash"}), False: ((), {})}

    @pytest.mark.parametrize(
        ("options", "law"),
        [
            ({"argv": ["x", "{flsh}"]}, "there is no placeholder {flsh}"),
            ({"argv": ["x", "{dp * microbatch_size}"]}, "did you mean micro_batch_size"),
            (
                {"argv": ["x", "--a={flash}"], "values": {"flash": {"false": None}}},
                "omits a whole argument",
            ),
            ({"argv": ["x", "{flash}"], "values": {"precison": {}}}, "did you mean precision"),
            (
                {"argv": ["x", "{flash}"], "values": {"flash": "--flash"}},
                "must map each value of flash to its text",
            ),
            (
                {"argv": ["x", "{flash}"], "values": {"flash": {"true": ["a"]}}},
                "flash=true must be written as text",
            ),
            (
                {"argv": ["x", "{flash}"], "metrics": {"loss": "("}},
                "is not a valid RE2 regular expression",
            ),
            (
                {"argv": ["x", "{flash}"], "metrics": {"step_times": "(x)"}},
                "did you mean step_time_s",
            ),
            (
                {"argv": ["x", "{files}"], "files": {"a.json": {"x": "{node_rank}"}}},
                "no placeholder {node_rank}",
            ),
        ],
    )
    def test_options_that_fit_no_launch_are_refused_at_load(
        self, options: dict[str, Any], law: str
    ) -> None:
        with pytest.raises(SpecError, match=re.escape(law)):
            trainer("command").check_own_knobs(
                ["flash"] if "{flash}" in str(options) else [], options
            )

    @pytest.mark.parametrize(
        "text", ["{dp!r}", "{dp:>9}", "{dp.real}", "{dp[0]}", "{", "{}", "{0}"]
    )
    def test_placeholders_are_plain_names(self, text: str) -> None:
        with pytest.raises(SpecError):
            self.launch(["x", text])

    def test_without_metrics_json_lines_are_read(self) -> None:
        read = trainer("command").reader({"argv": ["x"]})
        assert read('INFO {"step": 2, "step_time_s": 0.5, "loss": NaN, "other": [1]}') is not None
        assert read('{"step": 2}') is None
        assert read('{"step_time_s": true}') is None


EXPONENTIAL = [
    r"(a+)+$",
    r"(a|a)*b(c)",
    r"(.*)*(x)",
    r".*.*.*.*.*.*(x)",
    r"(?:x{1,3}){1,9}(y)",
    r".*[^y]*(x)",
    "(?:a|aa)" * 24 + "(b)",
    "(a{0,64}b?)" * 12,
    "a?" * 40 + "a" * 40 + "(b)",
    "(?i)" + "(?:.{0,90})" * 12 + "(q)",
]
"""a matcher that backtracks needs hours for a line like one of these"""


@pytest.mark.parametrize("pattern", EXPONENTIAL)
@pytest.mark.parametrize("letter", ["a", "x", "ab", "é"])
def test_patterns_of_exponential_time_end(pattern: str, letter: str) -> None:
    compile_pattern(pattern, field="x")((letter * MAX_SEARCHED)[:MAX_SEARCHED])


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        (r"(?<=t=)([0-9.]+)", "only the pattern's group is read"),
        (r"(?<!val )loss=([0-9.]+)", "only the pattern's group is read"),
        (r"loss=(?!nan)([0-9.]+)", "only the pattern's group is read"),
        (r"([0-9.]+)(?=s)", "only the pattern's group is read"),
        (r"(x)\1", "instead of referring to the group"),
        (r"(?P<n>x)(?P=n)", "instead of referring to the group"),
        (r"loss=([0-9.]+)\Z", "write [$]"),
        (r"(\d++)", "possessive quantifier or atomic group"),
        (r"(?>\d+)(x)", "possessive quantifier or atomic group"),
        (r"time (\d+)\u00b5s", "the character itself"),
        (r"x{1,2000}(b)", "smaller repetition counts"),
        ("(x).*" + ".{1000}" * 35 + "y", "smaller repetition counts"),
        (r"loss=([0-9]{,3})", "write {0,3}"),
        (r"(?x) (a)", "use RE2 syntax"),
        (r"no group", "put brackets"),
        ("", ""),
        ("(", "use RE2 syntax"),
        ("(a)" * 200, ""),
        (3, ""),
    ],
)
def test_patterns_that_cannot_be_matched_are_refused_with_a_remedy(
    pattern: object, remedy: str
) -> None:
    with pytest.raises(SpecError) as refused:
        compile_pattern(pattern, field="trainer.metrics.loss")
    assert refused.value.field == "trainer.metrics.loss"
    assert re.search(remedy, refused.value.remedy)


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (r"loss=([\d.]+)", "loss=2.5", "2.5"),
        (r"step\s+(\d+).*?time: *([\d.]+)", "step  12, time: 0.5", "12"),
        (r"tps: (\d{1,3}(?:,\d{3})*)", "tps: 7,282 tflops", "7,282"),
        (r"a|b(c)", "bc", "c"),
        (r"a|b(c)", "a", None),
        (r"(?:loss (nan)|loss ([0-9.]+))", "loss 2.5", "2.5"),
        (r"(?i)LOSS[:=] ?(?P<value>[0-9.]+?)\b", "Loss: 2.", "2"),
        (r"(\d+)µs", "took 12µs", "12"),
        (r"τ=(\w+)", "τ=ab", "ab"),
        (r"(x)", "y", None),
        (r"loss ([0-9.]+)", "\ud800 loss 2", "2"),
    ],
)
def test_patterns_find_their_first_group(pattern: str, line: str, found: str | None) -> None:
    assert compile_pattern(pattern, field="x")(line) == found
