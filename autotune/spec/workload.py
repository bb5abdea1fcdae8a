"""The workload, which is the fixed part of a study: the model, the data sizes and the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from autotune.errors import SpecError
from autotune.spec.checks import one_of, positive_int
from autotune.spec.cluster import ClusterSpec
from autotune.spec.hugging_face.figures import narrowest_window
from autotune.spec.model import ModelSpec
from autotune.spec.plain import Plain
from autotune.spec.post_training import PostTraining

OPTIMIZERS = ("adamw", "sgd", "adamw_8bit", "muon", "adafactor")
"""adamw keeps two fp32 moments per weight, adamw_8bit two moments of one byte, muon one moment
(two, as adamw, for embeddings, norms and the output projection), adafactor sums over rows and
columns, and sgd keeps no state"""
PEFT_METHODS = ("lora", "qlora")
"""lora trains adapters on top of frozen weights (arXiv 2106.09685); qlora keeps the frozen weights
in 4 bits (arXiv 2305.14314)"""
PEFT_LIBRARIES = ("", "peft")
"""libraries for adapters: Hugging Face's PEFT, which keeps adapters in fp32, or any other
library"""
PEFT_TARGETS = ("attention", "all")
"""projections with adapters: attention only, or the MLP (or experts) too"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Peft:
    """Fine-tuning that trains low-rank adapters and freezes the model's weights."""

    method: str = "lora"
    """lora or qlora"""
    rank: int = 16
    """inner width of an adapter, >= 1"""
    targets: str = "all"
    """attention or all"""
    library: str = ""
    """peft if the program uses Hugging Face's PEFT adapters (LLaMA-Factory, axolotl, TRL);
    otherwise empty"""
    upcast: bool | None = None
    """whether the program casts embeddings, norms and the output projection to fp32, as PEFT's
    `prepare_model_for_kbit_training` does; None: true for qlora with PEFT's adapters, unless
    ZeRO-3 or FSDP shards the weights"""
    frozen_fp32: bool = False
    """with lora: whether the program loads the frozen weights in fp32 and leaves them in fp32, so
    that autocast casts each to 16 bits before its use"""

    def __post_init__(self) -> None:
        one_of("peft.method", self.method, PEFT_METHODS)
        positive_int("peft.rank", self.rank, at_most=1 << 16)
        one_of("peft.targets", self.targets, PEFT_TARGETS)
        one_of("peft.library", self.library, PEFT_LIBRARIES)


LOOPS = ("accelerate", "deepspeed", "hf_trainer", "lightning", "megatron", "nanotron", "torchtitan")
"""training loops that the user's own program may run"""
ATTENTION_KERNELS = ("flash2", "flash3", "cudnn")
"""FlashAttention-2 (also torch's own kernel), FlashAttention-3, and cuDNN's kernel
(TransformerEngine)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Plain):
    """Model, cluster, sequence length, batch, optimizer and trainer."""

    model: ModelSpec
    """the model to train"""
    cluster: ClusterSpec
    """the cluster on which the model is trained"""
    seq_len: int
    """tokens per sequence, >= 1"""
    global_batch_size: int | tuple[int, ...]
    """sequences per optimizer step: one value, or the allowed values in ascending order"""
    optimizer: str = "adamw"
    """adamw, sgd, adamw_8bit, muon or adafactor"""
    trainer: str = "native"
    """name of the trainer; the cost model's constants depend on it and on the GPU type"""
    document_len: int = 0
    """mean length in tokens of documents that are packed into a sequence and do not attend to each
    other; 0 if a sequence is one document"""
    peft: Peft | None = None
    """the adapters that fine-tuning trains instead of all weights; None if all weights are
    trained"""
    pure_bf16: bool = False
    """whether the program keeps weights, gradients and moments in bf16, and nothing in fp32
    (weights loaded and trained in bf16; Lightning's bf16-true)"""
    shards_in_fp32: bool = False
    """with `pure_bf16`: whether weights that are sharded are still kept in fp32. Accelerate, and
    therefore transformers' Trainer, casts weights that FSDP shards in mixed precision
    (`fsdp2_prepare_model`), and DeepSpeed, which they may call, keeps master weights"""
    unfused_attention: bool = False
    """whether the program's attention stores the score matrix (eager attention of transformers,
    Megatron-LM before FlashAttention). FlashAttention (arXiv 2205.14135) and torch's
    scaled_dot_product_attention never store it"""
    attention_kernel: str = ""
    """the attention kernel, if the program's user chooses it: one of `ATTENTION_KERNELS`, which
    differ by up to 1.8 times over long sequences on Hopper. Empty means the trainer's own kernel,
    or an unknown kernel"""
    loop: str = ""
    """for your own program: the trainer whose training loop the program runs, one of `LOOPS`; the
    cost model's constants and memory depend on the loop. Empty if unknown"""
    rl: PostTraining | None = None
    """a post-training step; None for a plain optimizer step on sequences of equal length"""

    def __post_init__(self) -> None:
        for name, kind in (("model", ModelSpec), ("cluster", ClusterSpec)):
            if not isinstance(getattr(self, name), kind):
                raise SpecError(
                    f"{name} must be a {kind.__name__}, but is {getattr(self, name)!r}",
                    remedy=f"autotune.spec.catalog.{name}(NAME) finds a {name} by name",
                    field=name,
                )
        positive_int("seq_len", self.seq_len, at_most=1 << 27)
        if isinstance(self.global_batch_size, list):
            object.__setattr__(self, "global_batch_size", tuple(self.global_batch_size))
        sizes = (
            self.global_batch_size
            if isinstance(self.global_batch_size, tuple)
            else (self.global_batch_size,)
        )
        if not sizes:
            raise SpecError(
                "global_batch_size must contain at least one size", field="global_batch_size"
            )
        for size in sizes:
            positive_int("global_batch_size", size, at_most=1 << 30)
        if isinstance(self.global_batch_size, tuple):
            object.__setattr__(self, "global_batch_size", tuple(sorted(set(sizes))))
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        if self.document_len:
            positive_int("document_len", self.document_len, at_most=self.seq_len)
        if self.peft is not None and not isinstance(self.peft, Peft):
            raise SpecError(
                f"peft must be a Peft, but is {self.peft!r}",
                remedy="Peft(method='lora', rank=16, targets='all')",
                field="peft",
            )

        if self.attention_kernel:
            one_of("attention_kernel", self.attention_kernel, ATTENTION_KERNELS)
        if self.attention_kernel and self.unfused_attention:
            raise SpecError(
                f"attention_kernel {self.attention_kernel!r} never stores the scores, but unfused_attention is true",
                remedy="remove attention_kernel or unfused_attention",
                field="attention_kernel",
            )
        if self.shards_in_fp32 and not self.pure_bf16:
            raise SpecError(
                "shards_in_fp32 applies only to weights in bf16, but pure_bf16 is false",
                remedy="set pure_bf16: true, or remove shards_in_fp32",
                field="shards_in_fp32",
            )
        if self.loop:
            one_of("loop", self.loop, LOOPS)
        for name in ("pure_bf16", "shards_in_fp32", "unfused_attention"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise SpecError(f"{name} must be true or false, but is {value!r}", field=name)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What predictions assume about the model and its attention, as sentences."""
        window = narrowest_window(self.model)
        if not 0 < window < self.seq_len:
            return self.model.assumptions
        all_tokens = (
            f"attention is counted over all {self.seq_len:,} tokens of a sequence, but the config.json of "
            f"{self.model.name} limits some or all layers to {window:,} tokens, so predicted times and MFU are too high if the "
            "trainer's kernels skip the other tokens"
        )
        return (*self.model.assumptions, all_tokens)

    @property
    def global_batch_sizes(self) -> tuple[int, ...]:
        """All allowed global batch sizes, in ascending order."""
        return (
            self.global_batch_size
            if isinstance(self.global_batch_size, tuple)
            else (self.global_batch_size,)
        )

    @property
    def tokens_per_sequence(self) -> float:
        """Tokens that a step trains on for each sequence in the global batch. This is the
        sequence's whole length. For post-training, it is the mean length of prompt and response
        times the number of mini-batches in a step."""
        return float(self.seq_len) if self.rl is None else self.rl.tokens / self.rl.mini_batch
