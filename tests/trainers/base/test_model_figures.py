"""A user's config.json reaches the trainer: untouched where it reads one, figure by figure where it
has its own flags, else by name in an error or a note."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import ExportError, SpecError
from autotune.spec import ParallelConfig, Study, catalog
from autotune.spec.hugging_face.figures import figures_of
from autotune.trainers import Launch, trainer
from autotune.trainers.documents.file_formats import hf_config, hf_layer_class

LLAMA_31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}
GEMMA = {
    **LLAMA_31,
    "model_type": "gemma2",
    "head_dim": 256,
    "num_attention_heads": 16,
    "final_logit_softcapping": 30.0,
}


SPEC: dict[str, Any] = {
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 4096, "global_batch_size": 64},
    "space": {"tp": [1, 2]},
}


def study(folder: Path, document: dict[str, Any]) -> Study:
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return api.load_study({**SPEC, "model": "./config.json"}, base=folder)


def launch(name: str, asked: Study, **options: Any) -> Launch:
    config = ParallelConfig(dp=8, accumulation_steps=8)
    return trainer(name).launch(asked.workload, config, options)


@pytest.mark.parametrize("document", [LLAMA_31, QWEN, GEMMA])
@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "hf_trainer"])
def test_a_trainer_that_reads_config_json_gets_the_users_own(
    name: str, document: dict[str, Any], tmp_path: Path
) -> None:
    found = launch(name, study(tmp_path, document))
    assert json.loads(found.files["model/config.json"]) == document
    assert not [note for note in found.notes if "rotary" in note]


def test_a_trainer_with_flags_of_its_own_is_told_the_figures(tmp_path: Path) -> None:
    flags = " ".join(launch("megatron", study(tmp_path, QWEN)).argv)
    for flag in ("--rotary-base 1000000", "--norm-epsilon 1e-06", "--add-qkv-bias"):
        assert flag in flags
    plain = study(tmp_path, {**LLAMA_31, "rope_theta": 10000.0, "rope_scaling": None})
    assert "--add-qkv-bias" not in " ".join(launch("megatron", plain).argv)
    assert "rope_theta: 10000.0" in next(
        iter(launch("nanotron", plain, entrypoint="run_train.py").files.values())
    )
    job = launch("torchtitan", plain, hf_assets_path="assets", version=0.2).files[
        "autotune_model.py"
    ]
    assert "rope_theta=10000.0" in job
    assert "scaling_factor=1.0" in job  # release 0.2 scales a model that it is not told about
    written = launch("torchtitan", plain, hf_assets_path="assets").files["autotune_config.py"]
    assert "'theta': 10000.0, 'scaling': 'none'" in written


def test_the_rotary_scaling_of_llama_31_is_carried_over_where_the_trainer_knows_it(
    tmp_path: Path,
) -> None:
    scaled = study(tmp_path, {**LLAMA_31, "rope_scaling": {"rope_type": "llama3", "factor": 32.0}})
    for version, expected in ((0.2, "scaling_factor=32.0"), (0.3, "'scaling_factor': 32.0")):
        found = launch("torchtitan", scaled, hf_assets_path="assets", version=version)
        assert expected in "".join(found.files.values())
        assert not [note for note in found.notes if "rotary" in note]
    found = launch("megatron", scaled)
    assert "--use-rope-scaling --rope-scaling-factor 32.0" in " ".join(found.argv)
    assert not [note for note in found.notes if "rotary" in note]


@pytest.mark.parametrize("name", ["megatron", "nanotron", "torchtitan"])
def test_another_model_than_the_file_means_is_refused_by_its_family(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ExportError,
        match=r"model\.family=gemma2.*would train a model that differs.*trainer supports .*llama",
    ):
        launch(name, study(tmp_path, GEMMA))


def test_what_is_not_carried_over_is_named_in_a_note(tmp_path: Path) -> None:
    notes = launch("nanotron", study(tmp_path, LLAMA_31), entrypoint="run_train.py").notes
    assert any("rotary scaling 'llama3'" in note for note in notes)
    other = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0}
    notes = launch("megatron", study(tmp_path, {**LLAMA_31, "rope_scaling": other})).notes
    assert any(
        "only the factor of the model's rotary scaling is carried over" in note for note in notes
    )


def of_catalog(model: str, seq_len: int = 4096) -> Study:
    return api.load_study(
        {
            "model": model,
            "cluster": "h100-sxm-1x8",
            "workload": {"seq_len": seq_len, "global_batch_size": 64},
            "space": {"tp": [1]},
        }
    )


@pytest.mark.parametrize(
    "name", ["deepspeed", "accelerate", "hf_trainer", "lightning", "megatron_bridge"]
)
def test_a_model_of_the_catalog_is_exported_with_its_published_config_json(name: str) -> None:
    for model, expected in (
        ("llama-8b", {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "model_type": "llama"}),
        (
            "Qwen/Qwen2.5-14B",
            {"rope_theta": 1000000.0, "rms_norm_eps": 1e-5, "model_type": "qwen2"},
        ),
        (
            "gemma-2-9b",
            {
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "tie_word_embeddings": True,
            },
        ),
    ):
        found = launch(name, of_catalog(model))
        document = json.loads(found.files["model/config.json"])
        assert document.items() >= expected.items()
        assert not [note for note in found.notes if "shape" in note or "rotary" in note]
    scaling = json.loads(launch(name, of_catalog("llama-1b")).files["model/config.json"])[
        "rope_scaling"
    ]
    assert scaling["factor"] == 32.0


def test_a_trainer_with_flags_of_its_own_is_told_the_figures_of_a_model_of_the_catalog() -> None:
    llama, qwen = of_catalog("llama-8b"), of_catalog("qwen2.5-7b")
    found = launch("megatron", llama)
    assert (
        "--rotary-base 500000 --norm-epsilon 1e-05 --use-rope-scaling --rope-scaling-factor 8.0"
        in " ".join(found.argv)
    )
    assert not [note for note in found.notes if "shape" in note or "rotary" in note]
    flags = " ".join(launch("megatron", qwen).argv)
    assert "--rotary-base 1000000 --norm-epsilon 1e-06 --add-qkv-bias" in flags
    for version in (0.2, 0.3):
        found = launch("torchtitan", llama, hf_assets_path="assets", version=version)
        assert "scaling_factor" in "".join(found.files.values())
        assert not [note for note in found.notes if "shape" in note or "rotary" in note]
    found = launch("nanotron", of_catalog("llama-2-7b"), entrypoint="run_train.py")
    assert "rope_theta: 10000.0" in next(iter(found.files.values()))


def test_a_model_that_a_trainer_cannot_tie_keeps_its_figures() -> None:
    found = launch(
        "torchtitan", of_catalog("llama-1b"), hf_assets_path="assets", version=0.2, nearest=True
    )
    assert any("model.tied_embeddings=False" in note for note in found.notes)
    assert "scaling_factor=32.0" in found.files["autotune_model.py"]


QWEN_EXPERTS = {
    **QWEN,
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.001,
}


@pytest.mark.parametrize("normalized", [True, False])
def test_experts_of_qwen_are_routed_in_megatron_as_their_file_says(
    normalized: bool, tmp_path: Path
) -> None:
    asked = study(tmp_path, {**QWEN_EXPERTS, "norm_topk_prob": normalized})
    argv = launch("megatron", asked).argv
    for name, value in (
        ("num-experts", "128"),
        ("moe-router-topk", "8"),
        ("moe-ffn-hidden-size", "768"),
    ):
        assert argv[argv.index(f"--{name}") + 1] == value
    assert argv[argv.index("--moe-aux-loss-coeff") + 1] == "0.001"
    assert "--qk-layernorm" in argv
    assert ("--moe-router-pre-softmax" in argv) == (not normalized)


def test_what_sets_a_family_of_the_catalog_apart_is_named_where_the_trainer_does_not_know_it() -> (
    None
):
    notes = launch("torchtitan", of_catalog("qwen2.5-7b"), hf_assets_path="assets").notes
    assert any(
        "without qwen2's other features; the trainer supports deepseek_v2" in note for note in notes
    )


def test_a_model_without_published_figures_is_exported_by_its_shape_with_a_note() -> None:
    for model in ("nano-llama", "granite-3.1-8b"):
        asked = of_catalog(model)
        assert figures_of(asked.workload.model) is None
        assert any("only by its shape" in note for note in launch("deepspeed", asked).notes)


def test_a_shape_that_only_has_the_name_of_a_model_of_the_catalog_gets_none_of_its_figures() -> (
    None
):
    model = catalog.model("llama-8b")
    assert figures_of(model) is not None
    assert figures_of(replace(model, num_layers=16)) is None
    assert figures_of(replace(model, name="mine")) is None


def test_longer_sequences_than_the_published_positions_fit_the_exported_model() -> None:
    document = json.loads(
        launch("deepspeed", of_catalog("gpt2-small", seq_len=2048)).files["model/config.json"]
    )
    assert document["n_positions"] == 2048
    assert document["layer_norm_epsilon"] == 1e-5
    assert document["resid_pdrop"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog.hub_ids())
def test_transformers_builds_the_model_of_the_catalog_from_its_config(name: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    model = catalog.model(name)
    figures = figures_of(model)
    if figures is None:
        pytest.skip("its figures are not in the catalog")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    document = hf_config(model, seq_len=512)
    config = AutoConfig.for_model(**document)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in built.parameters()) == pytest.approx(
        model.num_parameters, rel=0.005
    )
    assert type(built).__name__ == document["architectures"][0]
    assert hf_layer_class(model) in {type(module).__name__ for module in built.modules()}
    rope = getattr(config, "rope_parameters", None)
    if rope and figures.rotary_base is not None:
        assert rope.get("full_attention", rope)["rope_theta"] == figures.rotary_base
        assert rope.get("full_attention", rope)["rope_type"] == (
            figures.rotary_scaling or "default"
        )


SIZES = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 92544,
}
INTERNLM2 = {
    "model_type": "internlm2",
    **SIZES,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "bias": False,
}
QWEN_1 = {
    "model_type": "qwen",
    **SIZES,
    "intermediate_size": 22016,
    "kv_channels": 128,
    "rotary_emb_base": 20000,
}
BAICHUAN = {"model_type": "baichuan", **SIZES, "intermediate_size": 11008}


@pytest.mark.parametrize(
    ("document", "family", "key", "value", "flags"),
    [
        (INTERNLM2, "llama", "attention_bias", False, "--num-query-groups 8"),
        (QWEN_1, "qwen2", "intermediate_size", 11008, "--rotary-base 20000 --add-qkv-bias"),
    ],
)
def test_a_family_that_is_another_one_under_other_names_is_launched_as_that_one(
    document: dict[str, Any], family: str, key: str, value: Any, flags: str, tmp_path: Path
) -> None:
    remote = {
        "auto_map": {"AutoConfig": "configuration.Config"},
        "architectures": ["TheirForCausalLM"],
    }
    asked = study(tmp_path, {**document, **remote})
    exported = json.loads(launch("hf_trainer", asked).files["model/config.json"])
    assert (exported["model_type"], exported[key]) == (family, value)
    assert not {"auto_map", "architectures"} & set(exported)
    assert flags in " ".join(launch("megatron", asked).argv)


@pytest.mark.parametrize("name", ["hf_trainer", "deepspeed", "megatron_bridge", "megatron"])
def test_a_family_without_a_class_is_refused_with_who_can(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"model\.family=baichuan: .*native.*command with your own program"
    ):
        launch(name, study(tmp_path, BAICHUAN))
    with pytest.raises(
        SpecError, match=r"transformers has no class for the family 'baichuan'.*`model: PATH`"
    ):
        api.load_study({**SPEC, "model": {"hf": str(tmp_path / "config.json")}}, base=tmp_path)


@pytest.mark.parametrize(
    ("name", "family", "who"),
    [
        ("torchtitan", "glm4_moe", "use megatron, megatron_bridge, accelerate, "),
        ("megatron", "gpt_oss", "use megatron_bridge, torchtitan, accelerate, "),
        ("megatron", "gemma2", "use megatron_bridge, accelerate, "),
        ("nanotron", "olmo2", "use accelerate, deepspeed, hf_trainer, lightning, native"),
        ("megatron_bridge", "mixtral", "use megatron, accelerate, "),
    ],
)
def test_a_family_that_is_refused_names_the_trainers_that_train_it(
    name: str, family: str, who: str, tmp_path: Path
) -> None:
    asked = study(
        tmp_path,
        {**QWEN, "model_type": family, "moe_intermediate_size": 1408, "num_experts_per_tok": 2},
    )
    with pytest.raises(ExportError) as refused:
        launch(name, asked)
    assert f"model.family={family}" in str(refused.value)
    assert who in str(refused.value)


def test_layers_that_predict_further_tokens_are_no_models_of_transformers(tmp_path: Path) -> None:
    asked = study(tmp_path, QWEN)
    predicting = replace(asked.workload, model=replace(asked.workload.model, mtp_layers=1))
    for name in ("hf_trainer", "torchtitan"):
        limits = trainer(name).limits(predicting, ParallelConfig(dp=8, accumulation_steps=8))
        assert "model.mtp_layers" in {limit.knob for limit in limits}
    bridge = trainer("megatron_bridge").launch(
        predicting, ParallelConfig(dp=8, accumulation_steps=8)
    )
    assert bridge.files["bridge.yaml"].count("mtp_num_layers: 1") == 1


def test_a_multimodal_file_is_its_language_model(tmp_path: Path) -> None:
    asked = study(
        tmp_path, {"model_type": "gemma3", "text_config": {**GEMMA, "model_type": "gemma3_text"}}
    )
    assert (
        json.loads(launch("deepspeed", asked).files["model/config.json"])["model_type"]
        == "gemma3_text"
    )
    assert hf_layer_class(asked.workload.model) == "Gemma3DecoderLayer"


def test_a_multimodal_file_that_leaves_out_the_inner_family_is_not_taken_for_a_llama(
    tmp_path: Path,
) -> None:
    inner = {key: value for key, value in GEMMA.items() if key != "model_type"}
    asked = study(
        tmp_path, {"model_type": "gemma3", "tie_word_embeddings": False, "text_config": inner}
    )
    exported = json.loads(launch("deepspeed", asked).files["model/config.json"])
    assert exported == {**inner, "model_type": "gemma3_text", "tie_word_embeddings": False}
    with pytest.raises(ExportError, match=r"model\.family=gemma3_text"):
        launch("megatron", asked)


@pytest.mark.parametrize(
    ("document", "layer"),
    [(LLAMA_31, "LlamaDecoderLayer"), (QWEN, "Qwen2DecoderLayer"), (GEMMA, "Gemma2DecoderLayer")],
)
def test_the_layer_that_fsdp_wraps_is_that_of_the_family(
    document: dict[str, Any], layer: str, tmp_path: Path
) -> None:
    assert hf_layer_class(study(tmp_path, document).workload.model) == layer
