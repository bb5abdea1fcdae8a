"""Post-training: a step of reinforcement learning, of preference optimization, or of fine-tuning on
sequences of unequal length.

    one step     prompts x responses sequences are generated and scored, log-probabilities (and values) of them are computed, and the policy is updated
                  epochs x mini_batches times, each optimizer step on prompts * responses / mini_batches sequences
    algorithm     grpo and dapo have no critic (Shao et al., arXiv 2402.03300; Yu et al., arXiv 2503.14476), ppo has one (Schulman et al., arXiv 1707.06347);
                  dpo has two given responses for each prompt and generates none (Rafailov et al., arXiv 2305.18290); sft trains on given sequences and needs no log-probabilities
    placement     colocated   the generation engine and the trainer take turns on the same GPUs
                  split       each has its own GPUs, and waits for the other
                  async       each has its own GPUs; the trainer updates on responses of a policy that is at most `staleness` steps old, so both work at once

Knobs of post-training are knobs of a study (`knobs:`) with these names; a knob that a study does
not list has the value from `rl` or `rollout`. `autotune.cost.rl` has the symbols and formulas for
the time of each phase.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from autotune.errors import SpecError
from autotune.spec.checks import one_of, positive, positive_int
from autotune.spec.lengths import Lengths
from autotune.spec.model import ModelSpec
from autotune.spec.texts.as_text import number_of

ALGORITHMS = ("grpo", "dapo", "ppo", "dpo", "sft")
PLACEMENTS = ("colocated", "split", "async")
ENGINES = ("fsdp", "megatron", "deepspeed")
BALANCES = ("none", "batch", "in_order", "mini_batch")
"""how tokens are balanced between data-parallel ranks: nothing (ranks take their sequences as they
come), the whole batch of a step (verl's `balance_batch`; `in_order` as it was before 0.6), or each
mini-batch (NeMo-RL's `shard_by_batch_size`)"""
PHASE_OFFLOADS = ("none", "optimizer", "all")

TRAINED = ("log_prob", "reference", "values", "update")
"""phases of a step that the trainer runs"""

RL_KNOBS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "rollout_tp": ("tensor-parallel degree of the generation engine", ()),
    "rollout_gpus": (
        "GPUs that only generate responses. With 0, the same GPUs alternate between generation and training",
        (),
    ),
    "micro_batch_tokens": (
        "limit of tokens per GPU when packing the update's micro-batches. With 0, each micro-batch has micro_batch_size sequences",
        (),
    ),
    "log_prob_micro_batch_tokens": (
        "limit of tokens per GPU when packing micro-batches for log-probabilities and values. 0 means the update's limit",
        (),
    ),
    "phase_offload": (
        "which parts of the trainer are in host memory while the engine generates",
        PHASE_OFFLOADS,
    ),
    "staleness": ("how many steps the generating policy may lag behind the updated one", ()),
    "balance": ("how tokens are balanced between data-parallel ranks", BALANCES),
    "group_by_length": ("sequences of similar length share a micro-batch", ()),
}
"""post-training knobs: what each one means, and its values if they are words"""
_SEQUENCES = ("micro_batch_tokens", "balance", "group_by_length")
"""post-training knobs that also apply to fine-tuning on sequences of unequal length"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The generation speed, which the user specifies because autotune does not model it."""

    tokens_per_s_per_gpu: tuple[tuple[int, float], ...]
    """response tokens per second per GPU, by the engine's tensor-parallel degree"""
    tp: int = 1
    """the engine's current tensor-parallel degree"""
    memory_fraction: float = 0.0
    """share of a GPU's memory that the engine uses while generating, 0 to 1"""
    sleeps: bool = True
    """whether a colocated engine frees this memory while the trainer works"""
    tokens_per_s_per_response: float = 0.0
    """tokens per second for a single response, which determine how long the longest response takes;
    0 if not specified"""

    def __post_init__(self) -> None:
        positive_int("rollout.tp", self.tp, at_most=1 << 10)
        for degree, rate in self.tokens_per_s_per_gpu:
            positive_int("rollout.tokens_per_s_per_gpu", degree, at_most=1 << 10)
            positive("rollout.tokens_per_s_per_gpu", rate)
        if not 0.0 <= self.memory_fraction <= 1.0:
            raise SpecError(
                f"memory_fraction must be from 0 to 1, but is {self.memory_fraction!r}",
                field="rollout.memory_fraction",
            )
        if self.tokens_per_s_per_response < 0:
            raise SpecError(
                "tokens_per_s_per_response must not be below 0",
                field="rollout.tokens_per_s_per_response",
            )

    def rate(self, tp: int) -> float | None:
        """Return tokens per second per GPU with this tensor-parallel degree; None if this speed was
        not specified."""
        return dict(self.tokens_per_s_per_gpu).get(tp)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PostTraining:
    """A post-training step: everything in addition to a plain optimizer step."""

    algorithm: str
    """one of ALGORITHMS"""
    prompts: int
    """prompts per step, >= 1"""
    responses: int
    """responses per prompt, >= 1"""
    mini_batches: int = 1
    """optimizer steps per epoch of each post-training step, >= 1"""
    epochs: int = 1
    """passes over a step's responses, >= 1"""
    prompt_lengths: Lengths
    """prompt lengths in tokens"""
    response_lengths: Lengths
    """response lengths in tokens"""
    same_prompt: float = 0.3
    """share of the variance of response lengths that lies between prompts, 0 to 1, because
    responses to one prompt have similar lengths"""
    reference: bool = False
    """whether a frozen reference model with the policy's shape computes log-probabilities"""
    reference_offload: bool = False
    """whether the reference model is in host memory except while it computes log-probabilities"""
    critic: ModelSpec | None = None
    """the critic model, which computes values and is also updated"""
    placement: str = "colocated"
    """one of PLACEMENTS"""
    rollout_gpus: int = 0
    """current number of GPUs used only for generation; 0 if colocated"""
    staleness: float = 0.0
    """how many steps the generating policy may lag behind the updated policy"""
    rollout: Rollout | None = None
    """generation speed; None if nothing is generated"""
    reward_s: float = 0.0
    """seconds per step in which only rewards are computed"""
    engine: str = "fsdp"
    """training engine: fsdp, megatron or deepspeed"""
    micro_batch_tokens: int = 0
    """current value of the knob, in tokens per GPU; 0 if micro-batches are counted in sequences"""
    log_prob_micro_batch_tokens: int = 0
    """current value of the knob; 0 means the value of `micro_batch_tokens`"""
    phase_offload: str = "none"
    """current value of the knob, one of PHASE_OFFLOADS"""
    balance: str = "batch"
    """current value of the knob, one of BALANCES"""
    group_by_length: bool = False
    """current value of the knob"""
    fused_rope: bool = True
    """whether a Megatron-Core engine rotates positions with one fused kernel
    (`apply_rope_fusion`)"""
    whole_experts: bool = True
    """whether a Megatron-Core engine with tensor parallelism keeps each expert whole
    (`expert_tensor_parallel_size: 1`) instead of splitting it"""
    padded: bool = False
    """whether micro-batches are padded to their longest sequence instead of being packed without
    padding"""

    def __post_init__(self) -> None:
        one_of("rl.algorithm", self.algorithm, ALGORITHMS)
        one_of("rl.placement", self.placement, PLACEMENTS)
        one_of("rl.engine", self.engine, ENGINES)
        one_of("rl.balance", self.balance, BALANCES)
        one_of("rl.phase_offload", self.phase_offload, PHASE_OFFLOADS)
        for name in ("prompts", "responses", "mini_batches", "epochs"):
            positive_int(f"rl.{name}", getattr(self, name), at_most=1 << 24)
        if self.sequences % self.mini_batches:
            raise SpecError(
                f"mini_batches must divide the number of sequences in a step, but mini_batches={self.mini_batches} and {number_of(self.prompts, 'prompt')} x {number_of(self.responses, 'response')} "
                f"are {self.sequences}",
                field="rl.mini_batches",
            )
        if not 0.0 <= self.same_prompt <= 1.0:
            raise SpecError(
                f"same_prompt must be from 0 to 1, but is {self.same_prompt!r}",
                field="rl.same_prompt",
            )
        if self.staleness < 0 or self.reward_s < 0:
            raise SpecError("staleness and reward_s must not be below 0", field="rl")
        if self.staleness and self.placement == "colocated":
            raise SpecError(
                f"staleness needs separate GPUs for generation, "
                f"but placement=colocated and staleness={self.staleness:g}",
                remedy="set placement to async and give rollout_gpus, or omit staleness",
                field="rl.staleness",
            )
        if self.generates and self.rollout is None:
            raise SpecError(
                f"autotune does not model generation speed, so the spec must give the speed, but "
                f"algorithm={self.algorithm} has no `rollout`",
                remedy="add rollout: {tokens_per_s_per_gpu: 2400, tp: 1, memory_fraction: 0.6}, or rollout: {log: run.log} with the log of your own run",
                field="rollout",
            )

    @property
    def generates(self) -> bool:
        """Whether a step generates responses."""
        return self.algorithm in ("grpo", "dapo", "ppo")

    @property
    def sequences(self) -> int:
        """Sequences of a step."""
        return self.prompts * self.responses

    @property
    def mini_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.sequences // self.mini_batches

    @property
    def steps(self) -> int:
        """Optimizer steps in one post-training step."""
        return self.mini_batches * self.epochs

    @property
    def tokens(self) -> float:
        """Mean number of tokens in a step's sequences."""
        return self.sequences * (self.prompt_lengths.mean + self.response_lengths.mean)

    @property
    def longest(self) -> int:
        """Length of the longest possible sequence in tokens."""
        return int(self.prompt_lengths.longest + self.response_lengths.longest)

    @property
    def knob_names(self) -> tuple[str, ...]:
        """The post-training knobs that apply to this step."""
        if self.generates:
            return tuple(RL_KNOBS)
        return (
            _SEQUENCES if self.algorithm == "sft" else (*_SEQUENCES, "log_prob_micro_batch_tokens")
        )

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions about values that the spec does not contain, as text."""
        both = (("prompts", self.prompt_lengths), ("responses", self.response_lengths))
        notes = tuple(f"{name}: {lengths.assumed}" for name, lengths in both if lengths.assumed)
        if (
            self.generates
            and self.rollout is not None
            and not self.rollout.memory_fraction
            and not self.rollout_gpus
        ):
            notes += (
                "the engine is assumed to use no GPU memory, because rollout.memory_fraction is not set",
            )
        return notes

    def current(self, name: str) -> Any:
        """Return the current value of a post-training knob."""
        if name == "rollout_tp":
            return 1 if self.rollout is None else self.rollout.tp
        return getattr(self, name)


def check_rl_knob(name: str, values: Iterable[Any]) -> None:
    """Raise `SpecError` for an invalid value of a post-training knob."""
    words = RL_KNOBS[name][1]
    for value in values:
        if name == "group_by_length":
            required = "" if isinstance(value, bool) else "true or false"
        elif words:
            required = "" if value in words else f"one of {', '.join(words)}"
        elif name == "staleness":
            required = (
                ""
                if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
                else "a number of steps, 0 or more"
            )
        else:
            least = 1 if name == "rollout_tp" else 0
            is_count = (
                isinstance(value, int) and not isinstance(value, bool) and least <= value <= 1 << 27
            )
            required = "" if is_count else f"a whole number, {least} or more"
        if required:
            raise SpecError(
                f"{name} must be {required}, but one value is {value!r}", field=f"knobs.{name}"
            )
