"""Names that trainers and training scripts usually give to knobs, to figures of workloads and
models, and to their values; also alternative names of GPUs.

    tensor_model_parallel_size, tensor-parallel-size, tp_degree      -> tp
    per_device_train_batch_size, mbs                                 -> micro_batch_size
    bfloat16, bf16-mixed                                             -> bf16
    RTX 4090, A100-SXM4-80GB, DGX Spark                              -> rtx-4090, a100-80gb, gb10

Names are compared in lower case, with words joined by underscores, without the text before the last
dot. `autotune import` and `autotune init` use these names to read options. The error for an unknown
key in a spec uses them to suggest the right key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

_RANK = "(gpu|device|rank|card|replica|process|worker|core)"
_SIZE = "(_?size)?"
NAMES: Mapping[str, str] = {
    "micro_batch_size": f"batch{_SIZE}|bsz?|(train(ing)?_)?micro_?(train_)?batch{_SIZE}(_per_{_RANK})?|mbs|micro_bsz?|mini_?batch{_SIZE}|"
    f"(per_)?{_RANK}(_train(ing)?)?_((micro_?)?batch{_SIZE}|bs)|(train(ing)?_)?(micro_?)?(batch{_SIZE}|bs)_per_({_RANK}|train_gpu)|"
    f"train(ing)?_(batch{_SIZE}|bs)|local_(train_)?batch{_SIZE}|batch_size_train|(samples|imgs|images|sequences|seqs|tokens)_per_{_RANK}|"
    f"micro_?batch{_SIZE}_(in_)?tokens|tokens_per_(micro_?)?batch|(train(ing)?_|micro_?|max_)?batch(_size)?_(in_)?tokens|max_tokens_(per|in)_((micro_?)?batch|{_RANK})",
    "accumulation_steps": "((gradient|grad)s?_?)?acc(um|umulate|umulation)?(_(gradients?|grads?|(grad_|gradient_)?batches))?"
    "(_(steps?|iters?|iterations?|every|freq(uency)?|factor|counts?))?|(num|n)_(grad(ient)?_)?acc(um|umulate|umulation)?(_steps?)?|iters_to_accumulate|"
    "update_freq|gas?|ga_steps|batch_accumulation(_per_replica)?",
    "global_batch_size": f"(global|total|effective|overall)_((train(ing)?)_)?(batch{_SIZE}|bsz?)|gbs|(train_)?batch_size_(total|global)|"
    "tokens_per_(global_batch|(optimizer_|train_)?step)|(global|total)_batch(_size)?_(in_)?tokens",
    "precision": "(d|torch_d|compute_d|amp_d|autocast_d|mixed_precision_d|train_d|param_d|model_d|weight_d)type|(mixed_|amp_|train_)?precision|mixed|amp|"
    "compute_type",
    "recompute": "(use_|enable_)?(gradient|grad|activation|act)s?_?(checkpoint|ckpt|recompute)(ing|s)?(_enabled?)?|(full_)?checkpoint_activations|use_checkpoint(ing)?|"
    "recompute(_activations|_granularity|_layers)?|activations?_checkpoint(ing)?_(method|granularity)|ac(_mode)?|activation_checkpoint_mode|remat|use_gc",
    "compile": "(torch_|use_|use_torch_|enable_|do_)?compile(_model)?",
    "zero_stage": "(deepspeed_|ds_)?zero(_stage|_level)?|(deepspeed_|ds_)stage|sharding_strategy|fsdp_sharding_strategy",
    "tp": "tp(_size|_degree|_dim|_world_size)?|tensor(_model)?_parallel(_size|_degree|ism)?|model_parallel_size",
    "pp": "pp(_size|_degree|_world_size)?|pipe(line)?(_model)?_parallel(_size|_degree|ism)?|num_stages",
    "cp": "cp(_size|_degree|_world_size)?|context_parallel(_size|_degree|ism)?|ring_attn_size",
    "ep": "ep(_size|_degree)?|(moe_)?expert(_model)?_parallel(_size|_degree|ism)?",
    "dp": "dp(_size|_degree|_world_size)?|data_parallel(_size|_degree)?",
    "sequence_parallel": "(use_)?sequence_parallel|sp",
    "seq_len": "(max_|train_)?seq(uence)?_?len(gth)?|block_size|context_(length|len|size|window)|ctx(_len|_size|_length)?|max_length|model_max_length|cutoff_len|"
    "(max_)?seqlen|n_ctx|t?bptt(_len)?|tokens_per_sample|max_sequence_length|max_len",
    "steps": "(max_|num_|total_|n_|train_|num_train_|max_train_|training_|num_training_|total_training_|total_train_|optimizer_|max_optimizer_)"
    "(steps|iters|iterations|updates?)|iterations|iters|steps|num_batches|max_iter|total_num_updates?",
    "seed": "(random_|manual_)?seed",
    "nnodes": "nnodes|num_nodes|nodes",
    "nproc_per_node": "devices|(num_|n)?gpus(_per_node)?|nproc(_per_node)?|ngpus",
    "world_size": "world_size|num_processes|num_gpus_total",
    "num_layers": "n_?layers?|num_(hidden_)?layers|depth",
    "hidden_size": "n_?embd?|hidden_(size|dim)|d_model|dim|emb(ed(ding)?)?_?(dim|size)|emsize|n_embed",
    "num_attention_heads": "n_?heads?|num_(attention_)?heads",
    "vocab_size": "vocab(_size)?|padded_vocab_size",
    "num_kv_heads": "n_?kv_?heads?|num_(kv|key_value)_heads|(num|n)_(query|kv)_groups|kv_heads",
    "ffn_hidden_size": "(ffn|mlp|ff)_?(hidden_)?(size|dim)|ffn_(inner_)?hidden_size|intermediate_(size|dim)|d_(ff|ffn|mlp)|n_inner|inner_dim|dim_feedforward|feed_?forward_(size|dim)",
    "ffn_ratio": "(mlp|ffn|ff)_(ratio|mult(iplier)?|expansion(_factor)?)|expansion_(factor|ratio)|widening_factor",
    "attention_head_dim": "(attention_)?head_(dim|size)|d_head|kv_channels|d_kv",
    "num_experts": "(num|n)_(local_|routed_)?experts",
    "experts_per_token": "(num_)?experts_per_tok(en)?|moe_(router_)?top_?k|num_selected_experts|router_top_?k",
    "model": "model(_name|_id|_path)?(_or_path)?|config_name|pretrained_model_name_or_path|base_model",
}
"""name patterns, by knob or figure. Sources: the parsers of transformers 5.23 and trl 1.16,
Megatron-LM core 0.16 and Megatron-DeepSpeed, DeepSpeed 0.18, accelerate 1.15, Lightning 2.6,
torchtitan 0.3, nanotron, torchtune 0.6, litgpt 0.5, fairseq 0.12, timm 1.0, open_clip 3, MAE,
nanoGPT, nanochat, verl 0.6, OpenRLHF 0.8, x-transformers, llm-foundry 0.22, OLMo 0.6, LLaMA-Factory
0.9 and axolotl 0.21"""
MICRO_BATCH_NAMES = re.compile(
    rf"micro|mbs|local_|(^|_)per_{_RANK}|^{_RANK}_|_per_{_RANK}$|^per_device"
)
"""unambiguous names of a micro-batch. If a program has such an option, a plain `batch_size` or
`train_batch_size` is the batch of a step (DeepSpeed, verl, OpenRLHF, alpaca-lora)"""
IN_TOKENS = re.compile(r"tokens|^rank_microbatch_size$")
"""names of batches that count tokens; the last is OLMo-core's (`rank_microbatch_size`, "in tokens",
olmo_core/train/train_module)"""
FAIRSEQ_TOKENS = "max_tokens"
"""fairseq's name for a rank's batch in tokens; in other programs it is the number of tokens in a
whole training run (litgpt), or in an answer"""
FAIRSEQ_OPTIONS = frozenset({"update_freq", "max_sentences"})
"""options by which a program is recognized as fairseq"""
OTHER_PARTS = re.compile(
    r"(^|[._])(eval(uation)?|val(id|idation)?|test(ing)?|sampl(e|er|ing)|generat(e|ion)|infer(ence)?|rollout|ref(erence)?|critic|reward|actor|"
    r"ckpt|checkpoint(ing|er)?|log(ging|ger)?|save|tokenizer|vocab|profil(e|er|ing))\."
)
"""parts of a dotted name that do not refer to training steps: `eval.steps`"""
OTHER_DEGREES = re.compile(
    r"(ds_)?sequence_parallel_(size|degree)|sp_(size|degree)|ulysses\w*(size|degree)|expert_tensor_parallel_size|etp(_size)?|"
    r"(data_parallel|dp)_(replicate|shard)(_degree|_size|_dim)?|ring_degree|num_layers_per_virtual_pipeline_stage|virtual_pipeline\w*"
)
"""degrees that change what a rank does, for which `init` has no knob"""
AMP_FORMATS = re.compile(r"(amp|autocast|mixed_precision)_(dtype|precision)")
"""options that only select the format that a flag enables: timm's `--amp-dtype` in addition to
`--amp`"""
FINDS_BATCH = re.compile(
    r"auto_find_batch_size|auto_scale_batch_size|auto_lr_bs_find|find_batch_size|auto_batch_size|batch_size_finder"
)
"""options that let a program change its batch when memory runs out"""
TRACKERS = re.compile(
    r"(use_|enable_|log_to_|log_|with_)?(wandb|tensorboard|mlflow|comet(_ml)?|neptune|clearml|tracking|swanlab|trackio)(_log(ging)?)?|push_to_hub"
)
"""flags that enable trackers or upload the model"""
PRECISION_FLAGS: Mapping[str, str] = {
    "bf16": "(use_|enable_)?(bf16|bfloat16)(_training)?",
    "fp16": "(use_|enable_)?(fp16|half|float16|amp|mixed_precision)(_training)?",
    "tf32": "(use_|enable_|allow_)?tf32",
}
"""flags that enable one precision"""
WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "precision": {
        "fp32": (
            "float32",
            "fp32",
            "32-true",
            "32",
            "no",
            "full",
            "float",
            "single",
            "none",
            "amp_fp32",
            "torch.float32",
        ),
        "tf32": ("tf32",),
        "bf16": (
            *(
                "bfloat16",
                "bf16",
                "bf16-mixed",
                "bf16-true",
                "bf16_mixed",
                "amp_bf16",
                "amp_bfloat16",
                "pure_bf16",
                "torch.bfloat16",
            ),
            *("bfloat16-mixed", "mixed_bf16", "bf16-amp"),
        ),
        "fp16": (
            *(
                "float16",
                "fp16",
                "16-mixed",
                "16-true",
                "16",
                "half",
                "amp",
                "amp_fp16",
                "amp_float16",
                "pure_fp16",
                "torch.float16",
            ),
            *("fp16-mixed", "fp16_mixed", "mixed_fp16"),
        ),
        "fp8": ("fp8", "float8", "transformer-engine", "amp_fp8"),
    },
    "recompute": {
        "none": ("none", "off", "no", "null"),
        "selective": ("selective",),
        "full": ("full", "all", "on", "block", "uniform"),
    },
    "zero_stage": {
        "0": ("NO_SHARD", "ddp", "0", "no_shard"),
        "1": ("1",),
        "2": ("SHARD_GRAD_OP", "2", "zero2", "shard_grad_op"),
        "3": ("FULL_SHARD", "3", "fsdp", "zero3", "full_shard"),
    },
}
"""how scripts write the values of a knob, the most common first"""
DISABLED_OPTIONS: Mapping[str, str] = {
    "report_to": "none",
    "save_strategy": "no",
    "eval_strategy": "no",
    "evaluation_strategy": "no",
    "load_best_model_at_end": "False",
    "auto_find_batch_size": "False",
    "push_to_hub": "False",
}
"""options of `TrainingArguments` for tracking, saving, evaluation, uploads and automatic batch
sizes, each with the value that disables it"""

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
"""patterns of GPU names that differ from the catalog's"""
_CARD = re.compile(r"(?:rtx|rx)?_?([a]?[0-9]{4})_?(ti|xtx)?_?(super)?_?(ada)?(?:_?[0-9]+gb)?")
"""a graphics card by its number, with or without its prefix"""
_VENDOR = re.compile(r"^((nvidia|amd|geforce|instinct|radeon|tesla|quadro)_)+")


def setting_of(name: str) -> str | None:
    """Return the knob or size that an option with this name sets; None if it is unknown."""
    return next((key for key, pattern in NAMES.items() if re.fullmatch(pattern, name)), None)


def optimizer_named(word: str) -> str | None:
    """Return the optimizer with this usual name; None if the name is empty or the optimizer's
    memory is unknown."""
    return next(
        (name for name, pattern in OPTIMIZERS.items() if re.fullmatch(pattern, word.lower())), None
    )


@cache
def meanings_of(word: str) -> frozenset[str]:
    """Return the possible meanings of a key or value: knobs, sizes, values of knobs, and GPUs."""
    name = re.sub("[- ]", "_", word.rpartition(".")[2].lower().strip("- "))
    meanings = {setting_of(name)}
    meanings |= {"precision" for pattern in PRECISION_FLAGS.values() if re.fullmatch(pattern, name)}
    for values in WORDS.values():
        meanings |= {
            value
            for value, spellings in values.items()
            if word.lower() in map(str.lower, spellings)
        }
    meanings |= {key for key, option in _SPEC_KEYS.items() if option in meanings}
    if re.fullmatch("adapters?|q?lora|peft_config", name):
        meanings.add("peft")
    return frozenset(filter(None, meanings)) | _gpus(name)


def _gpus(name: str) -> frozenset[str]:
    """Return the catalog names that a GPU's name may mean."""
    bare = _VENDOR.sub("", name)
    gpus = {gpu for gpu, pattern in GPUS.items() if re.fullmatch(pattern, bare)}
    if card := _CARD.fullmatch(bare):
        number = "-".join(part for part in card.groups() if part)
        gpus |= {f"rtx-{number}", f"rx-{number}"}
    elif bare != name or "_" in bare:
        gpus |= {bare.replace("_", "-")}
    return frozenset(gpus)


_SPEC_KEYS = {
    "num_nodes": "nnodes",
    "gpus_per_node": "nproc_per_node",
    "world_sizes": "world_size",
    "max_steps": "steps",
}
"""keys of a spec with different names in scripts' options"""
