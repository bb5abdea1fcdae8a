"""A spec is read strictly, and every mistake is answered with its place, the law and the nearest
right word."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from autotune.errors import AutotuneError, CatalogError, SpecError
from autotune.schema import StudyDocument, json_schema, parse_space, parse_study, read_spec
from autotune.schema.document import (
    IN_QUERY,
    Bytes,
    BytesPerSecond,
    Document,
    FlopsPerSecond,
    Seconds,
    SequenceLength,
    Tokens,
)
from autotune.schema.model_documents import ModelDocument
from autotune.schema.reading import MAX_BYTES, parse_text
from autotune.schema.space_models import SpaceDocument
from autotune.schema.spec_models import (
    BudgetDocument,
    MeasureDocument,
    ObjectiveDocument,
    WorkloadDocument,
)
from autotune.space import SearchSpace, default_config
from autotune.spec import (
    FIELDS,
    KNOBS,
    PRECISIONS,
    Budget,
    MeasureSpec,
    ModelCode,
    ModelSpec,
    Objective,
    ParallelConfig,
    Study,
    catalog,
    config_label,
)
from autotune.spec.study import METRICS
from autotune.spec.workload import OPTIMIZERS
from tests.matrix import examples

MINIMAL: dict[str, Any] = {
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 512},
    "space": "dense-single-node",
}


def study(**changes: Any) -> Study:
    return parse_study({**MINIMAL, **changes}, local_cluster=lambda: catalog.cluster("cpu-1x4"))


def test_omitted_keys_have_their_defaults() -> None:
    found = study()
    assert found.name == "gpt2-medium-h100-sxm-1x8"
    assert found.objective == Objective()
    assert found.budget == Budget()
    assert found.measure == MeasureSpec()
    assert (found.searcher, found.trainer, found.runner, found.seed) == (
        "bayesian",
        "native",
        "ray",
        0,
    )
    assert found.workload.trainer == "native"


def test_all_keys_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be", encoding="utf-8")
    document = {
        **MINIMAL,
        "name": "everything",
        "workload": {"seq_len": 512, "global_batch_size": [64, 32, 64], "optimizer": "sgd"},
        "space": {
            "tp": [1, 2],
            "micro_batch_size": {"powers_of_two": [1, 64]},
            "world_sizes": 8,
            "compile": True,
        },
        "objective": {"metric": "goodput", "stability_weight": 0},
        "budget": {"max_trials": 3, "max_wall_s": "1e2", "max_gpu_s": 5, "train_tokens": 3e11},
        "measure": {"min_steps": 3, "max_steps": 3, "precision": 0.1},
        "searcher": "optuna:tpe",
        "trainer": {"kind": "native"},
        "runner": {"kind": "simulated", "noise": 0.1, "faults": [{"kind": "oom"}]},
        "seed": 7,
        "data": "text.txt",
        "baseline": {"dp": 8, "accumulation_steps": 8},
        "enqueue": [
            "tp=2,dp=4,accumulation_steps=16",
            {"tp": 2, "dp": 4, "accumulation_steps": 16},
        ],
    }
    found = parse_study(document, base=tmp_path)
    assert found.workload.global_batch_sizes == (32, 64)
    assert found.workload.optimizer == "sgd"
    assert found.space.knobs == {
        "tp": (1, 2),
        "micro_batch_size": (1, 2, 4, 8, 16, 32, 64),
        "compile": (True,),
    }
    assert found.space.world_sizes == (8,)
    assert found.budget == Budget(max_trials=3, max_wall_s=100.0, max_gpu_s=5.0, train_tokens=3e11)
    assert found.runner == "simulated"
    assert found.runner_options == {"noise": 0.1, "faults": [{"kind": "oom"}]}
    assert found.data == str(tmp_path / "text.txt")
    assert found.baseline == ParallelConfig(dp=8, accumulation_steps=8)
    assert found.enqueue == (ParallelConfig(tp=2, dp=4, accumulation_steps=16),)


def test_inline_model_and_cluster() -> None:
    model = {
        "name": "own",
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 256,
    }
    cluster = {
        "gpu": {
            "name": "own",
            "memory_bytes": 16e9,
            "peak_flops_per_s": {"bf16": 1e14},
            "memory_bytes_per_s": 1e12,
        },
        "num_nodes": 2,
        "gpus_per_node": 4,
        "inter_node": {"latency_s": 1e-5, "bytes_per_s": 1e9},
    }
    found = study(model=model, cluster=cluster)
    assert found.workload.model == ModelSpec(**model)
    assert found.workload.cluster.name == "own-2x4"
    assert found.workload.cluster.inter_node.bytes_per_s == 1e9
    priced = study(
        cluster={"gpu": "h100-sxm", "num_nodes": 4, "usd_per_hour": 2.5}
    ).workload.cluster
    assert priced.name == "h100-sxm-4x8"
    assert priced.gpu.usd_per_hour == 2.5
    assert priced.intra_node == catalog.cluster("h100-sxm-4x8").intra_node


def test_multi_token_prediction_layers_are_set_for_a_catalog_model() -> None:
    plain = study(model="deepseek-v3").workload.model
    assert plain.mtp_layers == 0
    assert study(model={"name": "deepseek-v3", "mtp_layers": 1}).workload.model == replace(
        plain, mtp_layers=1
    )
    with pytest.raises(SpecError, match="mtp_layers"):
        study(model={"name": "deepseek-v3", "mtp_layers": -1})
    with pytest.raises(CatalogError, match="there is no model 'deepsek'"):
        study(model={"name": "deepsek", "mtp_layers": 1})


def test_a_model_has_at_least_seq_len_learned_positions() -> None:
    assert study().workload.model.max_positions == 1024
    longer = study(workload={"seq_len": 2048, "global_batch_size": 512}).workload.model
    assert longer.max_positions == 2048
    assert longer.name == "gpt2-medium"


def test_a_model_from_a_hugging_face_config(tmp_path: Path) -> None:
    config = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (
        "mine/config.json",
        "./mine",
        str(tmp_path / "mine" / "config.json"),
        {"hf": "mine/config.json"},
    ):
        found = parse_study({**MINIMAL, "model": path}, base=tmp_path)
        assert found.workload.model.name == "mine"
        assert found.workload.model.num_parameters == catalog.model("gpt2-small").num_parameters
    with pytest.raises(SpecError, match="is neither a file nor the hub id"):
        parse_study({**MINIMAL, "model": "other/config.json"}, base=tmp_path)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
}


def test_own_keys_override_those_of_a_config_json() -> None:
    own = {"tied_embeddings": True, "gated_mlp": False, "max_positions": 2048, "mtp_layers": 1}
    model = parse_study(
        {**MINIMAL, "model": {**LLAMA, "model_type": "gpt_neox", **own}}
    ).workload.model
    assert {key: getattr(model, key) for key in own} == own
    assert parse_study({**MINIMAL, "model": LLAMA}).workload.model.tied_embeddings is False


def test_a_transformers_class_differs_from_the_decoder_of_its_shape(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, "intermediate_size": 96}), encoding="utf-8"
    )
    shape = parse_study({**MINIMAL, "model": "./config.json"}, base=tmp_path).workload.model
    own = parse_study({**MINIMAL, "model": {"hf": "config.json"}}, base=tmp_path).workload.model
    assert shape.code is None
    assert own.code is not None
    assert replace(own, code=None) == shape
    assert (own.code.module, own.code.has_tensor_plan, own.code.num_cuts) == ("", True, 3)


def test_a_model_of_an_unknown_family_is_built_to_get_its_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, "model_type": "brand_new"}), encoding="utf-8"
    )
    asked = {**MINIMAL, "model": {"hf": "config.json"}}
    built: list[ModelSpec] = []

    def inspect(model: ModelSpec) -> ModelSpec:
        built.append(model)
        return replace(model, num_layers=3)

    assert parse_study(asked, base=tmp_path, inspect=inspect).workload.model.num_layers == 3
    assert json.loads(built[0].source)["model_type"] == "brand_new"
    with pytest.raises(SpecError, match=r"'brand_new'.* is not supported"):
        parse_study(asked, base=tmp_path)


def test_a_users_code_runs_only_if_the_spec_is_a_file(
    tmp_path: Path,
) -> None:
    asked = {**MINIMAL, "model": {"module": "pack.age:build", "args": {"width": 8}}}
    (tmp_path / "spec.json").write_text(json.dumps(asked), encoding="utf-8")
    document = read_spec(tmp_path / "spec.json")
    assert document["model"]["folder"] == str(tmp_path)
    found = parse_study(document, base=tmp_path, inspect=lambda model: model).workload.model
    assert found.name == "pack.age.build"
    assert found.code == ModelCode(
        module="pack.age:build", args='{"width":8}', folder=str(tmp_path)
    )
    for base in (None, tmp_path):
        with pytest.raises(
            SpecError, match="runs its code, which is only allowed if the spec is a file"
        ):
            parse_study(document, base=base)
    with pytest.raises(SpecError, match=r"model.module"):
        parse_study(
            {**MINIMAL, "model": {"module": "no function"}},
            base=tmp_path,
            inspect=lambda model: model,
        )


def test_a_space_from_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("tp: {range: [1, 9, 4]}\npp: 2\n", encoding="utf-8")
    space = parse_space("mine.yaml", base=tmp_path)
    assert space.name == "mine"
    assert space.knobs == {"tp": (1, 5, 9), "pp": (2,)}


@pytest.mark.parametrize(
    "change",
    [{"model": "../config.json"}, {"model": {"hf": "../config.json"}}, {"space": "./mine.yaml"}],
)
def test_a_spec_from_the_network_has_no_paths(change: dict[str, str]) -> None:
    with pytest.raises(
        SpecError, match="paths are allowed only in a spec that is read from a file"
    ):
        study(**change)


def test_local_and_slurm_clusters_need_an_inspection() -> None:
    assert study(cluster="local", space="laptop").workload.cluster.name == "cpu-1x4"
    with pytest.raises(SpecError, match="cannot be inspected here"):
        parse_study({**MINIMAL, "cluster": "local"})


IN_BF16: dict[str, Any] = {
    "seq_len": 128,
    "global_batch_size": 16,
    "pure_bf16": True,
    "shards_in_fp32": True,
    "unfused_attention": True,
}
BF16_PROGRAM: dict[str, Any] = {
    "space": {"micro_batch_size": [1, 2], "precision": ["bf16"]},
    "trainer": {
        "kind": "command",
        "argv": [
            "./train",
            "--batch={micro_batch_size}",
            "--accum={accumulation_steps}",
            "--dtype={precision}",
            "--ranks={dp}",
        ],
    },
}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"sercher": "grid"}, "sercher", "did you mean searcher?"),
    ({"budget": {"max_trails": 3}}, "budget.max_trails", "did you mean max_trials?"),
    ({"space": {"micro_batch": 1}}, "space.micro_batch", "did you mean micro_batch_size?"),
    ({"cluster": {"gpu": {"nme": "x"}}}, "cluster.gpu.nme", "did you mean name?"),
    ({"model": "gpt-medium"}, "model", "did you mean gpt2-medium?"),
    (
        {"cluster": {"gpu": "h100"}},
        "gpu",
        "did you mean h100-nvl, h100-pcie, h100-sxm or h100-sxm-96gb?",
    ),
    ({"space": "laptp"}, "space", "did you mean laptop?"),
    ({"searcher": "baysian"}, "searcher", "did you mean bayesian?"),
    ({"trainer": "megatrn"}, "trainer", "did you mean megatron?"),
    (
        {"workload": {"seq_len": "1024", "global_batch_size": 1}},
        "workload.seq_len",
        "must be a whole number",
    ),
    (
        {"workload": {"seq_len": "4e3", "global_batch_size": 1}},
        "workload.seq_len",
        "write all digits",
    ),
    (
        {"workload": {"seq_len": 8, "global_batch_size": "4M"}},
        "workload.global_batch_size",
        "write all digits",
    ),
    (
        {"workload": {"seq_len": 8, "global_batch_size": "0100"}},
        "workload.global_batch_size",
        "omit the leading zeros",
    ),
    ({"name": False}, "name", "put quotes around a word: YAML reads"),
    ({"name": 7}, "name", "put quotes around the value"),
    (
        {"workload": {"seq_len": True, "global_batch_size": 1}},
        "workload.seq_len",
        "must be a whole number",
    ),
    (
        {"workload": {"seq_len": 0, "global_batch_size": 1}},
        "workload.seq_len",
        "greater than or equal to 1",
    ),
    (
        {"workload": {"seq_len": 8, "global_batch_size": []}},
        "workload.global_batch_size",
        "must have 1 or more entries",
    ),
    ({"workload": {"global_batch_size": 1}}, "workload.seq_len", "is required"),
    ({"workload": None}, "workload", "must be a mapping of keys to values"),
    ({"model": 5}, "model", "must be text"),
    ({"model": {"num_layers": 2}}, "model.hidden_size", "is required"),
    ({"space": {"tp": [0]}}, "space.tp", "whole number from 1"),
    ({"space": {"tp": ["2"]}}, "space.tp", "whole number from 1"),
    ({"space": {"tp": [1, [2]]}}, "space.tp.1", "must be a word, a whole number"),
    ({"space": {"tp": {"powers_of_two": [8, 1]}}}, "space.tp", "must not exceed"),
    (
        {"space": {"tp": {"range": [1, 10**9]}}},
        "space.tp",
        "at most 4,096 values, but has 1,000,000,000",
    ),
    ({"space": {"tp": {"range": [1, 5, 0]}}}, "space.tp", "must not exceed"),
    ({"space": {"tp": {}}}, "space.tp", "set either"),
    ({"space": {"precision": "fp9"}}, "space.precision", "did you mean fp8?"),
    ({"space": {"world_sizes": [-1]}}, "space.world_sizes.0", "greater than or equal to 1"),
    ({"space": ["tp"]}, "space", "must be text, or a mapping"),
    ({"objective": {"metric": "speed"}}, "objective.metric", "'throughput', 'goodput' or 'cost'"),
    (
        {"objective": {"stability_weight": 1.5}},
        "objective.stability_weight",
        "less than or equal to 1",
    ),
    ({"budget": {"max_trials": 0}}, "budget.max_trials", "greater than or equal to 1"),
    ({"budget": {"max_wall_s": True}}, "budget.max_wall_s", "must be a number"),
    ({"measure": {"first_look": 2}}, "measure", "0 (none) or at least 3, but first_look=2"),
    (
        {"budget": {"max_failed_trials": 0}},
        "budget.max_failed_trials",
        "greater than or equal to 1",
    ),
    ({"measure": {"min_steps": 9, "max_steps": 3}}, "measure", "max_steps=3 and min_steps=9"),
    (
        {"measure": {"final_rounds": 0, "stability_steps": 9}},
        "measure",
        "final_rounds=0, so there is no final round",
    ),
    ({"trainer": {"knd": "native"}}, "trainer.kind", "is required"),
    ({"trainer": {"kind": "native", "stps": 3}}, "trainer.stps", "did you mean steps?"),
    (
        {"trainer": {"kind": "native", "data": "mine.txt"}},
        "trainer.data",
        "data is a key of the study",
    ),
    ({"trainer": {"kind": "native", "seed": 3}}, "trainer.seed", "seed is a key of the study"),
    (
        {"trainer": {"kind": "native", "steps": 3}},
        "trainer.steps",
        "autotune export --option steps=",
    ),
    ({"trainer": {"kind": "command", "argv": "python train.py"}}, "trainer.argv", "must be a list"),
    ({"enqueue": ["tp=x"]}, "enqueue.0.tp", "must be a whole number"),
    ({"enqueue": [{"tq": 2}]}, "enqueue.0.tq", "there is no knob"),
    ({"enqueue": "tp=2"}, "enqueue", "must be a list"),
    ({"baseline": {"zero_stage": 4}}, "baseline.zero_stage", "must be 0, 1, 2 or 3"),
    ({"name": "../x"}, "name", "must begin with a letter"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"seed": 1 << 80}, "seed", "below 2^63"),
    ({"budget": {"max_wall_s": float("nan")}}, "budget.max_wall_s", "must be finite"),
    (
        {"model": {"hidden_size": 10, "num_attention_heads": 3, "num_layers": 1, "vocab_size": 9}},
        "model.num_attention_heads",
        "but",
    ),
    ({"budget": {"max_wall_s": "1M"}}, "budget.max_wall_s", "write 1min for minutes"),
    ({"budget": {"max_wall_s": "1000d"}}, "budget.max_wall_s", "less than or equal to"),
    ({"budget": {"max_wall_s": "3600"}}, "budget.max_wall_s", "omit the quotes"),
    ({"workload": {"seq_len": "8k", "global_batch_size": 1}}, "workload.seq_len", "write 8Ki"),
    (
        {"workload": {"seq_len": "1.5 tokens", "global_batch_size": 1}},
        "workload.seq_len",
        "whole number",
    ),
    (
        {"knobs": {"tp": [1]}},
        "knobs.tp",
        "a built-in knob, so a study cannot declare it again; write its values under `space`",
    ),
    (
        {"knobs": {"world_sizes": [1]}},
        "knobs.world_sizes",
        "is a reserved name in a space or a config",
    ),
    ({"knobs": {"Bad name": [1]}}, "knobs", "a lower-case letter"),
    ({"knobs": {"mine": [1, "a"]}}, "knobs.mine", "all numbers, all words, or true and false"),
    ({"knobs": {"mine": []}}, "knobs.mine", "must have 1 or more entries"),
    ({"knobs": {"mine": {"range": [4]}}}, "knobs.mine.range", "must have 2 or more entries"),
    (
        {"knobs": {"mine": [True, 1]}},
        "knobs.mine",
        "all numbers, all words, or true and false, but are [True, 1]",
    ),
    (
        {"knobs": {"name": [1, 2]}},
        "knobs.name",
        "is a reserved name in a space or a config; rename the knob",
    ),
    ({"knobs": {"extra": [1, 2]}}, "knobs.extra", "is a reserved name in a space or a config"),
    ({"knobs": {f"k{i}": [0, 1] for i in range(17)}}, "knobs", "must have at most 16 entries"),
    (
        {"knobs": {"mine": [1, 2]}, "enqueue": [{"tp": 1, "extra": 5}]},
        "enqueue.0.extra",
        "must map knobs to values, but is 5",
    ),
    (
        {"knobs": {"mine": [1, 2]}, "enqueue": ["tp=1,mine=3"]},
        "enqueue.0.mine",
        "must be one of 1, 2, but is 3",
    ),
    ({"knobs": {"mine": [1, 2]}, "baseline": "mime=1"}, "baseline.mime", "did you mean mine"),
    ({"space": {"mine": [1]}}, "space.mine", "there is no key 'mine'"),
    (
        {"knobs": {"mine": [1, 2]}},
        "knobs.mine",
        "the native trainer does not support the knob mine: this trainer's launches cannot set a study's own knob; use `trainer: {kind: command",
    ),
    (
        {"knobs": {"mine": [1, 2]}, "trainer": {"kind": "command", "argv": ["train", "{tp}"]}},
        "knobs.mine",
        "argv, env, files and overrides have no placeholder {mine}",
    ),
    ({"model": {"module": "my_model"}}, "model.module", "must be MODULE:FUNCTION or"),
    ({"model": {"module": "my_model:"}}, "model.module", "must be MODULE:FUNCTION or"),
    ({"model": {"module": "my model:build"}}, "model.module", "must be MODULE:FUNCTION or"),
    ({"model": {"module": "my_model:build\n"}}, "model.module", "must be MODULE:FUNCTION or"),
    ({"workload": {**IN_BF16, "pure_bf16": "yes"}}, "workload.pure_bf16", "must be true or false"),
    (
        {**BF16_PROGRAM, "workload": {**IN_BF16, "pure_bf16": False}},
        "workload.shards_in_fp32",
        "pure_bf16 is false",
    ),
    (
        {**BF16_PROGRAM, "workload": {**IN_BF16, "attention_kernel": "flash3"}},
        "workload.attention_kernel",
        "never stores the scores",
    ),
]


@pytest.mark.parametrize(("change", "field", "words"), WRONG)
def test_errors_have_field_and_remedy(change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises((SpecError, CatalogError)) as error:
        study(**change)
    assert error.value.field == field
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_error_for_a_missing_key_has_an_example() -> None:
    with pytest.raises(SpecError) as raised:
        parse_study({"model": "nano-gpt", "workload": {"seq_len": 32, "global_batch_size": 8}})
    asked = [raised.value, *raised.value.others]
    assert {error.field for error in asked} == {"cluster", "space"}
    assert all("`autotune " in error.remedy for error in asked)


def test_learned_positions_cover_the_longest_sequence() -> None:
    longest = {"seq_len": 1 << 27, "global_batch_size": 8}
    assert study(model="gpt2-medium", workload=longest).workload.model.max_positions == 1 << 27


def test_all_invalid_configs_are_reported_at_once() -> None:
    wrong = ["tp=x", "tp=1", {"tq": 2}, "tp=64", "tp=2,micro_batch_size=7"]
    with pytest.raises(SpecError) as raised:
        study(baseline="tp=3", enqueue=wrong)
    told = [(error.field, error.message) for error in (raised.value, *raised.value.others)]
    fields = ["baseline", "enqueue.0.tp", "enqueue.2.tq", "enqueue.3", "enqueue.4"]
    assert sorted(field for field, _ in told) == fields
    assert all(message for _, message in told)


def test_pure_bf16_is_a_key_of_the_workload() -> None:
    found = study(**BF16_PROGRAM, workload=IN_BF16).workload
    assert found.pure_bf16
    assert found.shards_in_fp32
    assert found.unfused_attention
    named = {**IN_BF16, "unfused_attention": False, "attention_kernel": "flash3"}
    assert study(**BF16_PROGRAM, workload=named).workload.attention_kernel == "flash3"


def test_times_tokens_bytes_and_rates_may_have_units() -> None:
    found = study(
        workload={"seq_len": "2Ki", "global_batch_size": 512, "document_len": "1Ki"},
        budget={"max_wall_s": "1h30m", "max_gpu_s": "2d", "train_tokens": "15T"},
        measure={"step_timeout_s": "90s"},
        cluster={
            "gpu": {
                "name": "mine",
                "memory_bytes": "80GiB",
                "peak_flops_per_s": {"bf16": "989TFLOPS"},
                "memory_bytes_per_s": "3.35TB/s",
            },
            "intra_node": {"latency_s": "5us", "bytes_per_s": "450GB/s"},
            "inter_node": {"bytes_per_s": "400Gbit/s"},
        },
    )
    assert (found.workload.seq_len, found.workload.document_len) == (2048, 1024)
    assert (found.budget.max_wall_s, found.budget.max_gpu_s, found.budget.train_tokens) == (
        5400,
        172800,
        15e12,
    )
    assert found.measure.step_timeout_s == 90
    cluster = found.workload.cluster
    assert (cluster.gpu.memory_bytes, cluster.gpu.memory_bytes_per_s) == (80 * 2**30, 3.35e12)
    assert cluster.gpu.peak_flops_per_s["bf16"] == 989e12
    assert (cluster.intra_node.latency_s, cluster.inter_node.bytes_per_s) == (5e-6, 50e9)
    assert Study.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_examples_of_units_in_the_json_schema_are_accepted() -> None:
    for kind in (Seconds, Tokens, Bytes, BytesPerSecond, FlopsPerSecond, SequenceLength):
        adapter = TypeAdapter[float](kind)
        (example,) = adapter.json_schema()["anyOf"][1]["examples"]
        assert adapter.validate_python(example) > 0


def test_a_url_query_accepts_numbers_and_units() -> None:
    tokens = TypeAdapter[float](Annotated[Tokens, IN_QUERY])
    sequence = TypeAdapter[float](Annotated[SequenceLength, IN_QUERY])
    assert [tokens.validate_python(text) for text in ("300B", "3e11", "300000000000")] == [
        300e9
    ] * 3
    assert [sequence.validate_python(text) for text in ("8Ki", "8192", "8192.0")] == [8192] * 3
    for adapter, text in (
        (tokens, "0"),
        (tokens, "inf"),
        (tokens, ""),
        (sequence, "8k"),
        (sequence, "1.5"),
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(text)


def test_a_time_with_colons_is_not_read_in_base_60() -> None:
    assert parse_text("max_wall_s: 1:30:00\ncount: 12\nport: -0o7", where="x", what="x") == {
        "max_wall_s": "1:30:00",
        "count": 12,
        "port": "-0o7",
    }


def test_omitted_knobs_of_a_guess_follow_from_the_others() -> None:
    found = study(
        enqueue=["tp=2,micro_batch_size=8", {"pp": 4, "precision": "fp16"}], baseline="dp=4,tp=2"
    )
    assert found.enqueue == (
        ParallelConfig(tp=2, dp=4, micro_batch_size=8, accumulation_steps=16),
        ParallelConfig(pp=4, dp=2, accumulation_steps=256, precision="fp16"),
    )
    assert found.baseline == ParallelConfig(tp=2, dp=4, accumulation_steps=128)


def test_missing_data_is_an_error_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"data: the data file 'no.txt' does not exist"):
        parse_study({**MINIMAL, "data": "no.txt"}, base=tmp_path)
    assert parse_study({**MINIMAL, "data": "on-the-service.bin"}).data == "on-the-service.bin"


def test_files_are_read_as_yaml_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text(
        "model: gpt2-small\nbudget: {max_trials: 3}\n", encoding="utf-8"
    )
    (tmp_path / "a.json").write_text(
        '{\t"model": "gpt2-small",\n\t"budget": {"max_trials": 3}}', encoding="utf-8"
    )
    assert read_spec(tmp_path / "a.yaml") == read_spec(str(tmp_path / "a.json"))
    monkeypatch.setattr("sys.stdin", io.StringIO("{model: gpt2-small, budget: {max_trials: 3}}"))
    assert read_spec("-") == read_spec(tmp_path / "a.yaml")
    assert read_spec("laptop")["name"] == "laptop"


def test_a_spec_from_a_file_is_self_contained(tmp_path: Path) -> None:
    folder = tmp_path / "a folder (of mine)"
    folder.mkdir()
    config = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "mine.yaml").write_text("description: mine\ntp: [1, 2]\n", encoding="utf-8")
    (folder / "text.txt").write_text("words", encoding="utf-8")
    pointing = {**MINIMAL, "model": {"hf": "config.json"}, "space": "mine.yaml", "data": "text.txt"}
    (folder / "spec.json").write_text(json.dumps(pointing), encoding="utf-8")
    document = read_spec(folder / "spec.json")
    found = parse_study(document)  # as a service would, which reads no files
    assert found == parse_study(pointing, base=folder)
    assert found.space.name == "mine"
    assert found.workload.model.name == "a-folder-of-mine"
    assert found.data == str(folder / "text.txt")
    assert json.loads(json.dumps(document)) == document


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "but is empty"),
        ("- a\n", "but is a list"),
        ("just words", "but is text; write `key: value`"),
        ("a: [1", "is not YAML"),
        ("{", "is not YAML"),
        ("a: 1\na: 2\n", "the key 'a' is given twice"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("a: 2026-01-01", "a value is a date"),
        ("a: .inf", "must be finite"),
        ('{"a": NaN}', "must be finite"),
        ("a: &a [*a]", "nested 20 deep"),
        ("a: " + "[" * 500 + "]" * 500, "nested"),
        ("{" * 3000, "nested"),
        (BOMB, "50,000 values"),
        ("a: " + "9" * 5000, "is not YAML"),
        ("a: " + "x" * MAX_BYTES, "is larger than 256 KiB"),
        ("a: \x00", "is not YAML"),
    ],
)
def test_hostile_and_invalid_documents_are_rejected(text: str, match: str) -> None:
    with pytest.raises(SpecError, match=match) as error:
        parse_text(text, where="test", what="study spec")
    assert len(str(error.value)) < 500


def test_unreadable_files_have_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        read_spec(tmp_path / "no.yaml")
    with pytest.raises(SpecError, match="is not a file"):
        read_spec(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not UTF-8"):
        read_spec(tmp_path / "bytes.yaml")
    with pytest.raises(SpecError):
        read_spec("a\0b")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.thorough
@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(st.sampled_from(sorted(StudyDocument.model_fields)), plain)
def test_any_value_of_a_field_is_accepted_or_a_spec_error(field: str, value: Any) -> None:
    with suppress(AutotuneError):
        study(**{"space": {"tp": 1}, field: value})


@pytest.mark.thorough
@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(st.text())
def test_any_content_of_a_file_is_accepted_or_a_spec_error(text: str) -> None:
    with suppress(SpecError):
        parse_text(text, where="test", what="study spec")


@pytest.mark.parametrize("key", WorkloadDocument.model_fields)
def test_the_error_for_a_misplaced_workload_key_names_its_section(key: str) -> None:
    for changes in ({key: 1}, {"space": {key: 1}}):
        with pytest.raises(SpecError) as refused:
            study(**changes)
        assert refused.value.remedy == f"it is a key of workload; write `workload: {{{key}: ...}}`"


@pytest.mark.parametrize(
    ("home", "document"),
    [("budget", BudgetDocument), ("measure", MeasureDocument), ("objective", ObjectiveDocument)],
)
def test_the_error_for_a_misplaced_key_names_its_section(
    home: str, document: type[Document]
) -> None:
    for key in {*document.model_fields} - {*KNOBS}:
        for changes in ({key: 1}, {"space": {key: 1}}):
            with pytest.raises(SpecError) as refused:
                study(**changes)
            assert refused.value.remedy == f"it is a key of {home}; write `{home}: {{{key}: ...}}`"


def test_the_documents_have_every_field_of_the_values() -> None:
    assert set(SpaceDocument.model_fields) - {"name", "description", "world_sizes"} == set(FIELDS)
    assert set(ModelDocument.model_fields) == {field.name for field in fields(ModelSpec)} - {"code"}
    asked = StudyDocument.model_validate(MINIMAL)
    for part, value in (
        (asked.objective, Objective),
        (asked.budget, Budget),
        (asked.measure, MeasureSpec),
    ):
        assert set(type(part).model_fields) == {field.name for field in fields(value)} - {
            "failures"
        }
    spoken = {field.name for field in fields(Study)} - {
        "trainer_options",
        "runner_options",
        "left_out",
        "filled_in",
        "same_data",
        "at_hand",
        "keeps_outputs",
        "unwatched",
    }
    assert set(StudyDocument.model_fields) == spoken | {
        "model",
        "cluster",
        "target",
        "knobs",
        "outputs",
        "probe",
        "kubernetes",
        "slurm",
        "rl",
        "rollout",
        "failures",
    }


def test_the_json_schema_lists_the_words() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    assert schema["additionalProperties"] is False
    for word in (*PRECISIONS, *METRICS, *OPTIMIZERS):
        assert f'"{word}"' in text


def test_lone_surrogates_are_rejected_in_keys_and_values() -> None:
    for document in ({"name": "\ud800"}, {"model": {"\ud800": 1}}):
        with pytest.raises(SpecError, match="unpaired surrogate"):
            parse_study(document)


OWN = {
    "num_workers": [2, 0, 4],
    "bucket_mb": {"powers_of_two": [1, 8]},
    "flash": [False, True],
    "rate": [0.5, 1e-3],
}


def test_a_study_has_its_own_knobs() -> None:
    asked = study(
        knobs=OWN,
        trainer={
            "kind": "command",
            "argv": [
                "train",
                "{tp}",
                "{dp}",
                "{micro_batch_size}",
                "{accumulation_steps}",
                *(f"{{{name}}}" for name in OWN),
            ],
        },
        space={"tp": [1, 2], "micro_batch_size": 8},
        baseline="tp=1,flash=true",
        enqueue=["tp2 mb8 num_workers=4"],
    )
    assert dict(asked.space.extra) == {
        "num_workers": (2, 0, 4),
        "bucket_mb": (1, 2, 4, 8),
        "flash": (False, True),
        "rate": (0.5, 1e-3),
    }
    assert asked.baseline is not None
    assert dict(asked.baseline.extra) == {
        "num_workers": 2,
        "bucket_mb": 1,
        "flash": True,
        "rate": 0.5,
    }, "the first value is the default"
    assert asked.enqueue[0].extra["num_workers"] == 4
    assert Study.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    space = SearchSpace.build(asked.workload, asked.space)
    assert len(space) == 2 * 3 * 4 * 2 * 2
    assert asked.baseline in SearchSpace.build(asked.workload, replace(asked.space, knobs={}))
    assert default_config(space).extra["num_workers"] == 2
    assert space.coordinates().shape == (96, len(FIELDS) + 4)
    assert (
        len({config.key for config in space})
        == len({config_label(config) for config in space})
        == 96
    )


def test_keys_of_options_are_text_as_in_the_store() -> None:
    spec = parse_text(
        "values: {flash: {true: --flash, false: null}, bucket: {8: big}}", where="here", what="spec"
    )
    trainer = {"kind": "command", "argv": ["x", "{flash}", "{bucket}"], **spec}
    found = study(trainer=trainer, knobs={"flash": [False, True], "bucket": [4, 8]})
    assert found.trainer_options["values"] == {
        "flash": {"true": "--flash", "false": None},
        "bucket": {"8": "big"},
    }
    assert Study.from_dict(json.loads(json.dumps(found.to_dict(), sort_keys=True))) == found


def test_an_inline_cluster_has_a_fabric_and_an_nvlink_domain() -> None:
    where = {"gpu": "h100-sxm", "num_nodes": 4, "gpus_per_node": 8}
    usual = study(cluster=where).workload.cluster
    named = study(cluster=where | {"inter_node": {"fabric": "infiniband-hdr"}}).workload.cluster
    assert named.inter_node == replace(usual.inter_node, fabric="infiniband-hdr", bytes_per_s=25e9)
    given = {"fabric": "roce", "bytes_per_s": 12.5e9}
    slower = study(cluster=where | {"inter_node": given, "gpus_per_domain": 32}).workload.cluster
    assert slower.inter_node == replace(usual.inter_node, fabric="roce", bytes_per_s=12.5e9)
    assert slower.domain_gpus == 32
    joined = study(cluster=where | {"inter_node": {"fabric": "nvlink"}}).workload.cluster
    assert joined.inter_node == replace(usual.intra_node, fabric="nvlink")
    with pytest.raises(SpecError, match="fabric"):
        study(cluster=where | {"inter_node": {"fabric": "omnipath"}})


@pytest.mark.parametrize(
    "model", ["gpt2-small", {"name": "gpt2-small"}, {"hf": "config.json"}, {"module": "a:b"}]
)
def test_the_error_for_adapters_under_model_names_workload(model: Any) -> None:
    inside = isinstance(model, dict)
    asked = (
        {**MINIMAL, "model": {**model, "peft": {"method": "lora"}}}
        if inside
        else {**MINIMAL, "model": model}
    )
    with pytest.raises(SpecError) as raised:
        parse_study(asked if inside else {**asked, "peft": {"method": "lora"}})
    assert raised.value.field == ("model.peft" if inside else "peft")
    assert "workload: {peft: ...}" in raised.value.remedy


def test_lora_is_the_default_method_of_adapters() -> None:
    workload = {**MINIMAL["workload"], "peft": {"rank": 16}}
    found = parse_study({**MINIMAL, "workload": workload}).workload.peft
    assert found is not None
    assert (found.method, found.rank) == ("lora", 16)


def test_an_unnamed_model_is_named_after_its_study_and_shape() -> None:
    """Records, best configs and reference losses are found by the model's name."""
    shape = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256}
    asked = {"cluster": "cpu-1x1", "workload": {"seq_len": 64, "global_batch_size": 4}, "space": {"micro_batch_size": [4]}}  # fmt: skip

    def name(model: dict[str, object], **more: object) -> str:
        return parse_study({**asked, "model": model, **more}).workload.model.name

    first = name(shape, name="mine")
    assert first.startswith("mine-")
    assert first == name(dict(reversed(shape.items())), name="mine")
    assert first != name({**shape, "num_layers": 3}, name="mine")
    assert name(shape).startswith("model-")
    assert name({**shape, "name": "own"}, name="mine") == "own"
