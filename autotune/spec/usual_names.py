"""What trainers and training scripts usually call the knobs of a config, the figures of a workload and a model, and their values; and GPUs by other names.

    tensor_model_parallel_size, tensor-parallel-size, tp_degree      -> tp
    per_device_train_batch_size, mbs                                 -> micro_batch_size
    bfloat16, bf16-mixed                                             -> bf16
    RTX 4090, A100-SXM4-80GB, DGX Spark                              -> rtx-4090, a100-80gb, gb10

Names are compared in small letters, words joined by underscores, without what stands before the last dot. `autotune import` and `autotune init` read
options by them, and an unknown key of a spec is answered with the key that it means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

NAMES: Mapping[str, str] = {
    "micro_batch_size": "batch_size|bs|batch|(per_)?(device|gpu)(_train)?_(micro_)?batch_size|per_(device|gpu)_train_batch_size|per_device_bs|"
    "train_batch_size|micro_batch(_size)?|mbs|local_batch_size|batch_size_(per|train)(_gpu|_device|_rank)?|train_micro_batch_size(_per_gpu)?|"
    "micro_bs|mini_batch_size",
    "accumulation_steps": "(gradient|grad)_?acc(um|umulation|umulate)?(_steps|_iters?)?|acc(um|umulation)?(_steps|_iters?|_freq|_grad)?|"
    "accumulate_grad(ient)?(_batches|s)?|iters_to_accumulate|update_freq|gas?",
    "global_batch_size": "(global|total|effective)_(train_)?(batch(_size)?|bs)|gbs",
    "precision": "(d|data|torch_d|compute_d|amp_d|train_d|param_d)type|(mixed_)?precision|mixed|amp|compute_type",
    "recompute": "(use_)?(gradient|grad|activation|act)_?(checkpoint|ckpt|recompute)(ing|s)?|checkpoint_activations|use_checkpoint(ing)?|"
    "recompute(_activations|_granularity)?|ac(_mode)?|activation_checkpoint_mode|remat|use_gc",
    "compile": "(torch_|use_|use_torch_|enable_)?compile(_model)?",
    "zero_stage": "zero(_stage)?|(deepspeed_)?stage|ds_stage|sharding_strategy|fsdp_sharding_strategy",
    "tp": "tp(_size|_degree|_dim)?|tensor(_model)?_parallel(_size|_degree|ism)?|model_parallel_size",
    "pp": "pp(_size|_degree)?|pipeline(_model)?_parallel(_size|_degree|ism)?|num_stages",
    "cp": "cp(_size|_degree)?|context_parallel(_size|_degree|ism)?",
    "ep": "ep(_size|_degree)?|expert(_model)?_parallel(_size|_degree|ism)?",
    "dp": "dp(_size|_degree)?|data_parallel(_size|_degree)?",
    "sequence_parallel": "(use_)?sequence_parallel|sp",
    "seq_len": "(max_)?seq(uence)?_?len(gth)?|block_size|context_(length|len|size|window)|ctx(_len|_size|_length)?|max_length|model_max_length|cutoff_len|"
    "(max_)?seqlen|n_ctx|t?bptt(_len)?",
    "steps": "(max_|num_|total_|n_|train_|num_train_|max_train_|training_|num_training_)(steps|iters|iterations)|iterations|iters|steps|"
    "num_batches|max_iter",
    "seed": "(random_|manual_)?seed",
    "nnodes": "nnodes|num_nodes|nodes",
    "nproc_per_node": "devices|(num_|n)?gpus(_per_node)?|nproc(_per_node)?|ngpus",
    "world_size": "world_size|num_processes|num_gpus_total",
    "num_layers": "n_?layers?|num_(hidden_)?layers|depth",
    "hidden_size": "n_?embd?|hidden_(size|dim)|d_model|dim|emb(ed(ding)?)?_?(dim|size)|emsize|n_embed",
    "num_attention_heads": "n_?heads?|num_(attention_)?heads",
    "vocab_size": "vocab(_size)?|padded_vocab_size",
    "model": "model(_name|_id|_path)?(_or_path)?|config_name|pretrained_model_name_or_path|base_model",
}
"""patterns of names, by knob or figure"""
PRECISION_FLAGS: Mapping[str, str] = {
    "bf16": "(use_|enable_)?(bf16|bfloat16)(_training)?",
    "fp16": "(use_|enable_)?(fp16|half|float16|amp|mixed_precision)(_training)?",
    "tf32": "(use_|enable_|allow_)?tf32",
}
"""flags that switch one number format on"""
WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "precision": {
        "fp32": ("float32", "fp32", "32-true", "32", "no", "full", "float", "single", "none"),
        "tf32": ("tf32",),
        "bf16": ("bfloat16", "bf16", "bf16-mixed", "bf16-true", "bf16_mixed", "amp_bf16"),
        "fp16": ("float16", "fp16", "16-mixed", "16-true", "16", "half", "amp", "amp_fp16"),
        "fp8": ("fp8", "float8", "transformer-engine"),
    },
    "recompute": {
        "none": ("none", "off", "no"),
        "selective": ("selective",),
        "full": ("full", "all", "on", "block", "uniform"),
    },
    "zero_stage": {
        "0": ("NO_SHARD", "ddp", "0"),
        "1": ("1",),
        "2": ("SHARD_GRAD_OP", "2", "zero2"),
        "3": ("FULL_SHARD", "3", "fsdp", "zero3"),
    },
}
"""how scripts write the values of a knob, the most usual first"""
OF_A_RUN: Mapping[str, str] = {
    "report_to": "none",
    "save_strategy": "no",
    "eval_strategy": "no",
    "evaluation_strategy": "no",
    "load_best_model_at_end": "False",
}
"""options of `TrainingArguments` by which a run is watched, saved and judged, each with the value that switches it off"""

OPTIMIZERS: Mapping[str, str] = {
    "adamw_8bit": "(paged_|ao_)?adamw?(_torch|_bnb)?_?8bit",
    "adamw": "(paged_|flash_)?adamw?(_hf|_torch(_fused|_xla|_npu_fused)?|_apex_fused|_anyprecision|_?32bit)?|fusedadam|fused_adam",
    "muon": "(dist_)?muon",
    "adafactor": "adafactor",
    "sgd": "(flash_)?sgdw?",
}
"""patterns of names of optimizers"""

GPUS: Mapping[str, str] = {
    "a100-40gb": "a100_?(sxm4?_?)?40gb?",
    "a100-80gb": "a100_?(sxm4?_?)?80gb?|[dh]gx_a100",
    "a100-pcie-40gb": "a100_40gb_pcie",
    "a100-pcie-80gb": "a100_80gb_pcie",
    "b200-sxm": "b200_?(sxm6?_?)?(180|192)gb|[dh]gx_b200",
    "b300-sxm": "b300_?(sxm6?_?)?(270|288)gb|[dh]gx_b300",
    "gb10": "(dgx_)?spark|grace_blackwell",
    "gh200": "gh200_(96|480)gb|grace_hopper",
    "h100-sxm": "h100_?(sxm5?_?)?80gb?(_hbm3)?|h100_sxm5|[dh]gx_h100",
    "h200-sxm": "h200_?(sxm5?_?)?141gb|h200_sxm5|[dh]gx_h200",
    "rtx-6000-ada": "(rtx_)?6000_?ada(_generation)?",
    "rtx-pro-6000": "(rtx_)?(pro_6000|6000_pro)(_blackwell.*)?",
    "v100-16gb": "v100_?(sxm[23]?_?)?16gb?",
    "v100-32gb": "v100_?(sxm[23]?_?)?32gb?",
}
"""patterns of names of GPUs that the catalog calls otherwise"""
_CARD = re.compile(r"(?:rtx|rx)?_?([a]?[0-9]{4})_?(ti|xtx)?_?(super)?_?(ada)?(?:_?[0-9]+gb)?")
"""a graphics card by its number, with or without what stands before it"""
_VENDOR = re.compile(r"^((nvidia|amd|geforce|instinct|radeon|tesla|quadro)_)+")


def target_of(name: str) -> str | None:
    """The knob or figure that an option of this name stands for; None where autotune has no word for it."""
    return next((target for target, pattern in NAMES.items() if re.fullmatch(pattern, name)), None)


def optimizer_named(word: str) -> str | None:
    """The optimizer that programs call so; None for one whose memory nobody here knows, and for no word."""
    return next((name for name, pattern in OPTIMIZERS.items() if re.fullmatch(pattern, word.lower())), None)


@cache
def meant_by(word: str) -> frozenset[str]:
    """What a word may mean that somebody wrote as a key or as a value: knobs, figures, and values of knobs."""
    name = re.sub("[- ]", "_", word.rpartition(".")[2].lower().strip("- "))
    found = {target_of(name)}
    found |= {"precision" for pattern in PRECISION_FLAGS.values() if re.fullmatch(pattern, name)}
    for values in WORDS.values():
        found |= {value for value, spellings in values.items() if word.lower() in map(str.lower, spellings)}
    found |= {alike for alike, usual in _SPEC_KEYS.items() if usual in found}
    return frozenset(target for target in found if target) | _gpus(name)


def _gpus(name: str) -> frozenset[str]:
    """Names that a GPU may have in the catalog."""
    bare = _VENDOR.sub("", name)
    found = {gpu for gpu, pattern in GPUS.items() if re.fullmatch(pattern, bare)}
    if card := _CARD.fullmatch(bare):
        number = "-".join(part for part in card.groups() if part)
        found |= {f"rtx-{number}", f"rx-{number}"}
    elif bare != name or "_" in bare:
        found |= {bare.replace("_", "-")}
    return frozenset(found)


_SPEC_KEYS = {
    "num_nodes": "nnodes",
    "gpus_per_node": "nproc_per_node",
    "world_sizes": "world_size",
    "max_steps": "steps",
}
"""keys of a spec that scripts' options are called otherwise"""
