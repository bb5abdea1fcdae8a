"""torchtitan 0.2 and 0.3: the job file, the Python configuration and the model's module, what each
release refuses, and its log."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError, SpecError
from autotune.spec import ModelSpec, ParallelConfig, catalog
from autotune.spec.catalog import published_config
from autotune.spec.hugging_face.figures import figures_of
from autotune.testing.trainers import GPT, MODEL, WORKLOAD, TrainerContract, configs
from autotune.trainers import Launch, StepMetrics, trainer, write_launch
from autotune.trainers.present_configuration import PresentConfiguration, flat
from tests.trainers.released_names import calls_of, released_names

OPTIONS = {"hf_assets_path": "/tok"}
JOB = {**OPTIONS, "version": 0.2}
TIED = replace(MODEL, tied_embeddings=True)
WIDE_HEADS = replace(MODEL, attention_head_dim=128)
LINE = (
    "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  "
    "memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
)
COLOURED = (
    "[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[31mstep:  4  \x1b[32mloss:  7.62585  \x1b[38;2;180;60;0mgrad_norm: 26.6250  "
    "\x1b[36mmemory: 66.91GiB(37.51%)  \x1b[34mtps: 10,050  \x1b[36mtflops: 314.71  \x1b[35mmfu: 13.99%\x1b[39m"
)


PUBLISHED = {
    "mistral-7b": 1,
    "qwen3-0.6b": 1,
    "qwen3-8b": 1,
    "qwen3-30b-a3b": 8,
    "deepseek-v2-lite": 4,
    "deepseek-v3": 8,
    "gpt-oss-20b": 8,
}
"""models of the catalog beside Llama's that release 0.3 trains, with a degree of expert
parallelism"""


def parameters_of(model: ModelSpec) -> int:
    """What torchtitan holds of the model: with the norms of queries, keys and latents, and
    gpt-oss's sinks and biases, which the shape does not count."""
    figures = figures_of(model)
    if figures and figures.family == "gpt_oss":
        attention = (2 * model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim
        attention += (
            model.hidden_size
            - model.num_attention_heads * model.head_dim
            + model.num_attention_heads
        )  # output, sinks
        return model.num_parameters + model.num_layers * (
            attention + model.num_experts * (1 + 2 * model.ffn_hidden_size + model.hidden_size)
        )
    norms = (
        2 * model.head_dim
        if figures and figures.qk_norm
        else model.q_lora_rank + model.kv_lora_rank
    )
    return model.num_parameters + norms * model.num_layers


def job(launch: Launch) -> dict[str, Any]:
    """The job file, read as torchtitan reads it."""
    return tomllib.loads(launch.files["torchtitan.toml"])


def launched(config: ParallelConfig, *, model: ModelSpec = MODEL, **options: Any) -> Launch:
    """The launch of a model with this config."""
    return trainer("torchtitan").launch(
        replace(WORKLOAD, model=model), config, {**OPTIONS, **options}
    )


def values_of(launch: Launch, call: str) -> dict[str, Any]:
    """The keyword arguments of one call in the Python configuration."""
    tree = ast.parse(launch.files["autotune_config.py"])
    found = next(
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == call
    )
    return {str(word.arg): ast.literal_eval(word.value) for word in found.keywords}


MIXTRAL = catalog.model("mixtral-8x7b")
OF_A_FILE = replace(MIXTRAL, name="mine", source=json.dumps(published_config(MIXTRAL)))
QWEN_EXPERTS = catalog.model("qwen3-30b-a3b")
OLD = {"version": "0.2"}
REFUSED: list[tuple[ModelSpec, dict[str, Any], dict[str, Any], str]] = [
    (MODEL, {"dp": 8}, {"version": 0.4}, r"version must be one of 0\.2, 0\.3, but is 0\.4"),
    (TIED, {"pp": 2, "dp": 4, "zero_stage": 2}, {}, r"torchtitan 0\.3 cannot share the embedding"),
    (
        QWEN_EXPERTS,
        {"dp": 4, "tp": 2, "ep": 2, "zero_stage": 2},
        {},
        r"ep=2: .*; nearest: ep=1; or use tp=1",
    ),
    (
        QWEN_EXPERTS,
        {"dp": 8, "ep": 8},
        {},
        r"ep=8: .* here 1; ep must divide the number of these ranks; nearest: ep=1; or use zero_stage=2",
    ),
    (
        QWEN_EXPERTS,
        {"dp": 8, "ep": 8, "zero_stage": 2, "dp_replicas": 2},
        {},
        r"ep=8: .* here 4; ep must divide",
    ),
    (
        QWEN_EXPERTS,
        {"dp": 8, "zero_stage": 2, "precision": "fp8"},
        {},
        r"precision=fp8: .*not experts; nearest: precision=bf16",
    ),
    (
        OF_A_FILE,
        {"dp": 8, "zero_stage": 2},
        {},
        r"model\.family=mixtral: .*trainer supports .*qwen3_moe",
    ),
    (
        catalog.model("kimi-k2"),
        {"dp": 8, "zero_stage": 2},
        {},
        r"model\.num_experts=384: .*set `model` in the spec to the model's config.json",
    ),
    (
        catalog.model("glm-4.5-air"),
        {"dp": 8, "zero_stage": 2},
        {},
        r"model\.num_experts=128: torchtitan's Llama has no experts; use megatron",
    ),
    (TIED, {"dp": 8}, OLD, r"torchtitan 0\.2"),
    (WIDE_HEADS, {"dp": 8}, OLD, r"torchtitan 0\.2"),
    (
        catalog.model("qwen3-8b"),
        {"dp": 8},
        OLD,
        r"model\.family=qwen3: torchtitan 0\.2 launches .*; use version=0\.3, which trains",
    ),
    (
        MODEL,
        {"tp": 8, "sequence_parallel": True},
        OLD,
        r"precision=bf16: torchtitan 0\.2.s mixed precision with tp or pp needs FSDP",
    ),
    (GPT, {"dp": 8}, OLD, "gated_mlp=false"),
    (MODEL, {"dp": 8}, {**OLD, "hf_assets_path": ""}, "hf_assets_path is not set"),
]
"""a model, knobs and options, with what their refusal says"""


class TestTorchtitan(TrainerContract):
    trainer = "torchtitan"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"parallelism": {"tensor_parallel_degree": 2}}
    options: ClassVar[dict[str, Any]] = OPTIONS

    def test_mxfp8_converts_the_layers_and_leaves_the_output_projection(self) -> None:
        launch = self.launched(dp=8, zero_stage=2, precision="mxfp8", compile=True)
        given = values_of(launch, "MXFP8LinearConverter.Config")
        assert given == {"fqns": ["layers."], "model_compile_enabled": True}
        assert given.keys() <= released_names("torchtitan-0.3.0")["MXFP8LinearConverter.Config"]

    def test_a_pipeline_takes_the_whole_batch_as_local_and_no_cuda_graphs(self) -> None:
        launch = self.launched(
            tp=2, pp=2, dp=2, micro_batch_size=2, zero_stage=3, sequence_parallel=True
        )
        training, parallelism = (
            values_of(launch, "TrainingConfig"),
            values_of(launch, "ParallelismConfig"),
        )
        assert (training["local_batch_size"], training["global_batch_size"]) == (32, 64)
        assert training["disable_cuda_graphs"] is True
        assert parallelism["pipeline_parallel_microbatch_size"] == 2
        assert parallelism["enable_sequence_parallel"] is True
        assert launch.argv[-6:] == (
            "-m",
            "torchtitan.train",
            "--module",
            "autotune_config",
            "--config",
            "tuned",
        )

    def test_every_setting_is_one_that_the_release_knows(self) -> None:
        known = released_names("torchtitan-0.3.0")
        seen = set()
        for config in configs():
            if trainer("torchtitan").limits(WORKLOAD, config, OPTIONS):
                continue
            for name, keywords in calls_of(
                launched(config, dataset_path="/data").files["autotune_config.py"]
            ):
                if name != "llama":
                    assert keywords <= known[name], (
                        f"{name} of torchtitan 0.3.0 has no {keywords - known[name]}"
                    )
                    seen.add(name)
        assert seen == known.keys() - {"RoPE.Config", "MXFP8LinearConverter.Config"}

    @pytest.mark.parametrize("model", [TIED, WIDE_HEADS], ids=["tied", "wide heads"])
    def test_weights_of_both_ends_are_tied_as_the_model_says(self, model: ModelSpec) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=8)
        assert values_of(launched(config, model=model), "llama")["tied"] is model.tied_embeddings

    def test_mixed_precision_and_copies_beside_every_axis_are_known_to_the_newer_release_alone(
        self,
    ) -> None:
        for config in (
            ParallelConfig(tp=8, accumulation_steps=64, sequence_parallel=True),
            ParallelConfig(tp=2, dp=4, accumulation_steps=16, sequence_parallel=True),
            ParallelConfig(tp=2, dp=4, accumulation_steps=16, zero_stage=3),
        ):
            assert (
                values_of(launched(config), "ParallelismConfig")["tensor_parallel_degree"]
                == config.tp
            )
            assert trainer("torchtitan").limits(WORKLOAD, config, JOB)

    def test_a_function_of_your_own_is_read_with_the_options_of_its_command(self) -> None:
        text = """
            def small() -> Trainer.Config:
                return Trainer.Config(
                    model_spec=model_registry("8B"),
                    training=TrainingConfig(local_batch_size=2, global_batch_size=32, seq_len=4096, gc_freq=10),
                    parallelism=ParallelismConfig(data_parallel_shard_degree=4, tensor_parallel_degree=2),
                )
        """
        command = "torchrun --nproc-per-node 8 -m torchtitan.train --module mine --config small --compile.enable --training.steps=9"
        reading = trainer("torchtitan").read_config(
            PresentConfiguration(
                files={"mine.py": textwrap.dedent(text)}, argv=tuple(command.split())
            )
        )
        knobs = {
            "tp": 2,
            "dp": 4,
            "micro_batch_size": 2,
            "accumulation_steps": 4,
            "recompute": "selective",
        }
        assert {name: reading.knobs[name] for name in knobs} == knobs
        assert reading.knobs["compile"] is True
        assert (reading.seq_len, reading.options["steps"], reading.options["version"]) == (
            4096,
            9,
            "0.3",
        )
        assert reading.settings == {"training": {"gc_freq": 10}}
        assert "model_registry('8B')" in reading.remarks[0]

    @pytest.mark.parametrize(("name", "ep"), PUBLISHED.items())
    def test_a_published_model_is_read_back_from_its_launch(self, name: str, ep: int) -> None:
        model, config = (
            catalog.model(name),
            ParallelConfig(dp=8, micro_batch_size=8, zero_stage=2, ep=ep),
        )
        launch = launched(config, model=model)
        reading = trainer("torchtitan").read_config(PresentConfiguration.of_launch(launch))
        read = ModelSpec(name=name, **reading.model)
        assert replace(read, attention_head_dim=read.head_dim) == replace(
            model, attention_head_dim=model.head_dim
        )
        assert reading.knobs["ep"] == ep
        if model.num_experts:
            assert values_of(launch, "ParallelismConfig")["expert_parallel_degree"] == ep
            assert values_of(launch, "TrainingConfig")["disable_cuda_graphs"] is True

    def test_experts_and_latents_are_told_as_deepseeks_own_flavour_is(self) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=8, zero_stage=2)
        told = values_of(launched(config, model=catalog.model("deepseek-v3")), "deepseek_v3")
        assert told["latent"]["qk_nope_head_dim"] == 128
        assert (told["n_dense_layers"], told["dense_hidden_dim"], told["n_shared_experts"]) == (
            3,
            18432,
            1,
        )
        router = {
            "router_score_func": "sigmoid",
            "router_num_expert_groups": 8,
            "router_num_limited_groups": 4,
        }
        assert (
            told["experts"].items()
            >= {**router, "router_route_scale": 2.5, "router_route_norm": True}.items()
        )
        assert (
            told["rope"].items()
            >= {"scaling": "yarn", "rope_factor": 40.0, "original_seq_len": 4096}.items()
        )

    @pytest.mark.parametrize(("model", "knobs", "options", "said"), REFUSED)
    def test_what_it_does_not_train_is_refused_with_a_remedy(
        self, model: ModelSpec, knobs: dict[str, Any], options: dict[str, Any], said: str
    ) -> None:
        config = ParallelConfig(**{"accumulation_steps": 64 // knobs.get("dp", 1), **knobs})
        with pytest.raises((ExportError, SpecError), match=said):
            launched(config, model=model, **options)

    @pytest.mark.slow
    @pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan 0.3 is not installed")
    def test_torchtitan_itself_reads_the_configuration_and_builds_the_model(
        self, tmp_path: Path
    ) -> None:
        config = ParallelConfig(
            tp=2,
            pp=2,
            dp=2,
            micro_batch_size=2,
            accumulation_steps=16,
            zero_stage=3,
            recompute="full",
            pp_schedule="interleaved_1f1b",
            virtual_stages=4,
            compile=True,
        )
        plain = ParallelConfig(dp=8, micro_batch_size=8, zero_stage=2)
        published = [(catalog.model(name), replace(plain, ep=ep)) for name, ep in PUBLISHED.items()]
        for number, (model, asked) in enumerate(
            [(MODEL, config), (WIDE_HEADS, config), (TIED, plain), *published]
        ):
            folder = tmp_path / str(number)
            write_launch(launched(asked, model=model), folder)
            done = subprocess.run(
                [sys.executable, "-c", READ],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"},
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-2000:]
            read = json.loads(done.stdout.splitlines()[-1])
            assert read == {
                "parameters": parameters_of(model),
                "tp": asked.tp,
                "pp": asked.pp,
                "local": asked.micro_batch_size * (asked.accumulation_steps if asked.pp > 1 else 1),
            }


READ = """
import json, torch
from torchtitan.config import ConfigManager
read = ConfigManager().parse_args(["--module", "autotune_config", "--config", "tuned"])
read.model_spec.model.update_from_config(config=read)
with torch.device("meta"):
    model = read.model_spec.model.build()
degrees = read.parallelism
print(json.dumps({
    "parameters": sum(weight.numel() for weight in model.parameters()),
    "tp": degrees.tensor_parallel_degree,
    "pp": degrees.pipeline_parallel_degree,
    "local": read.training.local_batch_size,
}))
"""
"""What reads the configuration as `torchtitan.train` does, and builds the model without memory."""


INTERLEAVED = {
    "pp": 2,
    "dp": 4,
    "micro_batch_size": 2,
    "zero_stage": 2,
    "pp_schedule": "interleaved_1f1b",
}
WRITTEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "tp": 2,
            "pp": 2,
            "dp": 2,
            "micro_batch_size": 2,
            "zero_stage": 3,
            "sequence_parallel": True,
        },
        {
            "training.local_batch_size": 32,  # a pipeline takes the whole batch
            "training.global_batch_size": 64,
            "parallelism.pipeline_parallel_microbatch_size": 2,
            "parallelism.pipeline_parallel_schedule": "1F1B",
            "parallelism.fsdp_reshard_after_forward": "always",
            "parallelism.data_parallel_shard_degree": 2,
        },
    ),
    (
        {"dp": 8, "micro_batch_size": 2, "zero_stage": 2, "recompute": "full", "compile": True},
        {
            "training.local_batch_size": 2,
            "training.global_batch_size": 64,
            "parallelism.fsdp_reshard_after_forward": "never",
            "activation_checkpoint.mode": "full",
            "compile.enable": True,
            "training.mixed_precision_param": "bfloat16",
        },
    ),
    (
        {"dp": 8},
        {
            "parallelism.data_parallel_replicate_degree": 8,
            "parallelism.data_parallel_shard_degree": 1,
        },
    ),
    (
        {"dp": 8, "zero_stage": 2, "precision": "fp8"},
        {
            "model.converters": ["quantize.linear.float8"],
            "quantize.linear.float8.recipe_name": "tensorwise",
        },
    ),
    (
        {"dp": 8, "zero_stage": 2, "precision": "mxfp8"},
        {
            "model.converters": ["quantize.linear.mx"],
            "quantize.linear.mx.recipe_name": "mxfp8_cublas",
        },
    ),
    *(
        (
            {**INTERLEAVED, "virtual_stages": stages},
            {"parallelism.pipeline_parallel_layers_per_stage": layers},
        )
        for stages, layers in ((2, None), (4, 2), (8, 1))
    ),
]
"""knobs, with what the job file of release 0.2 says of them"""


@pytest.mark.thorough
class TestTorchtitan02(TrainerContract):
    trainer = "torchtitan"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"parallelism": {"tensor_parallel_degree": 2}}
    options: ClassVar[dict[str, Any]] = JOB
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        LINE: StepMetrics(
            step=14,
            loss=3.24405,
            grad_norm=0.8319,
            peak_memory_bytes=9.46 * 2**30,
            tokens_per_s_per_gpu=7282.0,
        ),
        COLOURED: StepMetrics(
            step=4,
            loss=7.62585,
            grad_norm=26.625,
            peak_memory_bytes=66.91 * 2**30,
            tokens_per_s_per_gpu=10050.0,
        ),
        "[titan] - root - INFO - validate step: 10  loss:  3.1  memory:  9.46GiB(64.99%)  tps: 7,282": None,
        "[titan] 2026-05-18 16:04:40,000 - root - INFO - Applied FSDP to the model": None,
    }

    def test_every_setting_is_one_that_the_release_knows(self) -> None:
        known = released_names("torchtitan-0.2.2")
        for config in configs():
            if trainer("torchtitan").limits(WORKLOAD, config, JOB):
                continue
            launch = launched(config, version="0.2", dataset_path="/data")
            document = job(launch)
            quantized = document.pop("quantize", {}).get("linear", {})
            document |= {f"quantize.linear.{name}": given for name, given in quantized.items()}
            for section, settings in document.items():
                assert settings.keys() <= known[section]
            for name, keywords in calls_of(launch.files["autotune_model.py"]):
                assert keywords <= known.get(name, {"model_args"})

    def test_mxfp8_is_not_compiled_under_tensor_parallelism(self) -> None:
        cut = ParallelConfig(
            tp=2, dp=4, zero_stage=2, precision="mxfp8", sequence_parallel=True, compile=True
        )
        refused = [limit.knob for limit in trainer("torchtitan").limits(WORKLOAD, cut, JOB)]
        assert refused == ["compile"]

    @pytest.mark.parametrize(("knobs", "expected"), WRITTEN)
    def test_the_job_file_says_the_knobs(
        self, knobs: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        document = dict(flat(job(self.launched(**knobs))))
        assert {name: document.get(name) for name in expected} == expected

    @pytest.mark.parametrize("ffn", [2816, 14336, 64, 4097, 11008, 5461, 53248])
    @pytest.mark.parametrize("hidden", [1024, 4096, 5120, 96])
    def test_the_feed_forward_width_is_exact(self, hidden: int, ffn: int) -> None:
        model = replace(MODEL, hidden_size=hidden, ffn_hidden_size=ffn, num_attention_heads=16)
        launch = trainer("torchtitan").launch(
            replace(WORKLOAD, model=model), ParallelConfig(dp=8, micro_batch_size=8), JOB
        )
        source = launch.files["autotune_model.py"]
        call = next(
            n
            for n in ast.walk(ast.parse(source))
            if isinstance(n, ast.Call) and len(n.keywords) > 5
        )
        given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        width = int(given["ffn_dim_multiplier"] * int(2 * (4 * hidden) / 3))
        assert (
            given["multiple_of"] * ((width + given["multiple_of"] - 1) // given["multiple_of"])
            == ffn
        )

    def test_a_model_name_cannot_inject_code(self) -> None:
        model = replace(MODEL, name='x"""\nimport os\n')
        launch = trainer("torchtitan").launch(
            replace(WORKLOAD, model=model), ParallelConfig(dp=8, micro_batch_size=8), JOB
        )
        assert "import os" not in launch.files["autotune_model.py"].splitlines()
        assert job(launch)["job"]["description"].startswith('x"""\nimport os')
