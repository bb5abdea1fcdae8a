"""`rl` and `rollout` of a draft, from the configuration of a post-training program.

A configuration limits the lengths of prompts and responses, but does not give their actual lengths,
nor the speed of generation. These are to be filled in, most easily from the log of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotune.onboarding.draft import Entry, filled
from autotune.schema.rl_documents import TRAINER_DEFAULTS
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout
from autotune.trainers.post_training.logs import read_phases
from autotune.trainers.present_configuration import Reading

STAND_IN_RATE = 1000.0
"""placeholder for the speed of generation, tokens per second per GPU"""
SHARE = 0.25
"""placeholder for the mean length, as a share of the maximum"""
SPACES: dict[str, dict[str, Any]] = {
    "fsdp": {
        "cp": {"powers_of_two": [1, 8]},
        "cp_style": ["ring", "heads"],
        "recompute": ["none", "full"],
        "zero_stage": [2, 3],
    },
    "deepspeed": {"recompute": ["none", "full"], "zero_stage": [2, 3]},
    "megatron": {
        "tp": {"powers_of_two": [1, 8]},
        "pp": {"powers_of_two": [1, 8]},
        "cp": {"powers_of_two": [1, 4]},
        "recompute": ["none", "selective", "full"],
        "zero_stage": [1],
        "sequence_parallel": [False, True],
    },
}
"""search spaces by training engine"""
SPEED = "tokens_per_s_per_gpu"
"""key of the speed of generation"""
LENGTHS = ("prompt_lengths", "response_lengths")
"""keys of the lengths"""


NO_TIME = 1e15
"""tokens per second per GPU that make the time of generation negligible"""


def asked_of_post_training(reading: Reading) -> list[str]:
    """Keys that the user must fill in; empty without post-training."""
    if not reading.rl:
        return []
    missing = [] if "prompts" in reading.rl else ["rl.prompts"]
    return [*missing, *(f"rl.{name}" for name in LENGTHS), f"rollout.{SPEED}"]


def post_training_entries(reading: Reading, seq_len: int) -> tuple[Entry, ...]:
    """The entries `rl`, `rollout` and `knobs` of a draft; empty without post-training."""
    if not reading.rl:
        return ()
    rl = {name: value for name, value in reading.rl.items() if name not in LENGTHS}
    rl = {"algorithm": rl.pop("algorithm"), "prompts": rl.pop("prompts", 1), **rl}
    longest = _longest(reading, seq_len)
    lengths = {
        name: {"mean": max(round(SHARE * most), 1), "max": most}
        for name, most in zip(LENGTHS, longest, strict=True)
    }
    lengths_comment = "fill in: prompt and response lengths, as mean and percentiles or as {log: run.log} from your own run"
    speed_comment = "fill in: generated tokens per second per GPU, or write `log: run.log` instead"
    tokens = rl.get("micro_batch_tokens")
    knobs = {"micro_batch_tokens": [tokens // 2, tokens, 2 * tokens]} if tokens else {}
    return filled(
        Entry(key="rl", value={**rl, **lengths}, comment=lengths_comment),
        Entry(
            key="rollout", value={SPEED: STAND_IN_RATE, **reading.rollout}, comment=speed_comment
        ),
        Entry(key="knobs", value=knobs),
    )


def post_training_space(reading: Reading, trainer: str) -> dict[str, Any]:
    """The space of a draft: values that the engine supports, and the current ones. The trainer's
    limits and the rules of a space exclude invalid configs."""
    engine = reading.rl.get("engine") or TRAINER_DEFAULTS[trainer][0]
    packs = bool(reading.rl.get("micro_batch_tokens"))
    space: dict[str, Any] = dict(SPACES[engine])
    space["micro_batch_size"] = [1] if packs else {"powers_of_two": [1, 16]}
    space["precision"] = [reading.knobs.get("precision", "bf16")]
    if (experts := reading.knobs.get("ep", 1)) > 1:
        space["ep"] = {"powers_of_two": [1, max(experts, 8)]}
    for name, values in space.items():
        if isinstance(values, list) and name in reading.knobs:
            current = reading.knobs[name]
            space[name] = (
                [current] if name in reading.held else [*values, *({current} - set(values))]
            )
    return space


def answered_by_log(
    document: Mapping[str, Any], text: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(`rl` and `rollout` of a draft with values from a log of verl, NeMo-RL, OpenRLHF or TRL; the
    keys that need no longer be filled in)"""
    log = read_phases(text.splitlines())
    rl, rollout, answered = dict(document["rl"]), dict(document["rollout"]), []
    for key, which in zip(LENGTHS, ("prompt", "response"), strict=True):
        if mean := log.median(f"{which}_mean"):
            longest = log.largest(f"{which}_max")
            rl[key] = {"mean": mean} if longest is None else {"mean": mean, "max": longest}
            answered.append(f"rl.{key}")
    if seconds := log.median("generation"):
        rollout.pop(SPEED, None)
        rollout["generation_s"] = seconds
        answered.append(f"rollout.{SPEED}")
    if reward_s := log.median("reward"):
        rl["reward_s"] = reward_s
    return {"rl": rl, "rollout": rollout}, tuple(answered)


def at_the_longest(
    document: Mapping[str, Any], open_keys: Iterable[str], seq_len: int | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(`rl` and `rollout` of a draft with unknown lengths at their limit, and without the time of
    generation if its speed is unknown; sentences on what that assumes). `seq_len`: tokens of the
    longest sequence, if the launch does not give them."""
    rl, rollout, assumed, unknown = (
        dict(document["rl"]),
        dict(document["rollout"]),
        [],
        set(open_keys),
    )
    limits = {key: rl[key]["max"] for key in LENGTHS if f"rl.{key}" in unknown}
    if seq_len is not None and "prompt_lengths" in limits:
        limits["prompt_lengths"] = max(seq_len - rl["response_lengths"]["max"], 1)
    rl |= {key: {"mean": limit, "max": limit} for key, limit in limits.items()}
    if limits:
        assumption = " and ".join(
            f"every {key.partition('_')[0]} has {limit:,} tokens" for key, limit in limits.items()
        )
        assumed.append(
            f"{assumption}, which is the limit, so time and memory are upper bounds; pass --log to read the lengths from a run's log"
        )
    if f"rollout.{SPEED}" in unknown:
        rollout[SPEED] = NO_TIME
        assumed.append(
            f"times exclude generation; pass --log to read generation times from a "
            f"log, or set rollout.{SPEED} in a spec"
        )
    return {"rl": rl, "rollout": rollout}, tuple(assumed)


def present_post_training(reading: Reading, batch: int) -> PostTraining:
    """The configuration's post-training, with placeholders for what it does not give. For a launch
    that is only written to be read again."""
    rl = {
        name: value
        for name, value in reading.rl.items()
        if name not in (*LENGTHS, "placement", "mini_batch_prompts")
    }
    prompt, response = _longest(reading, reading.seq_len or 2)
    responses = int(rl.pop("responses", 1))
    prompts = int(rl.pop("prompts", max(batch // responses, 1)))
    rl["mini_batches"] = max(prompts * responses // batch, 1)
    placement = reading.rl.get("placement") or {}
    placement_name = next((name for name in ("split", "async") if name in placement), "colocated")
    tp = int(reading.rollout.get("tp", 1))
    rl.setdefault(
        "balance", next((balance for _, balance, _ in TRAINER_DEFAULTS.values()), "batch")
    )
    return PostTraining(
        **rl,
        prompts=prompts,
        responses=responses,
        prompt_lengths=Lengths(values=(float(prompt),)),
        response_lengths=Lengths(values=(float(response),)),
        placement=placement_name,
        rollout_gpus=placement[placement_name][1] if placement else 0,
        staleness=float(placement.get("staleness", 0.0)) if placement else 0.0,
        rollout=Rollout(
            tokens_per_s_per_gpu=((tp, STAND_IN_RATE),),
            tp=tp,
            memory_fraction=float(reading.rollout.get("memory_fraction") or 0.0),
            sleeps=reading.rollout.get("sleeps", True),
        ),
    )


def _longest(reading: Reading, seq_len: int) -> tuple[int, int]:
    """(tokens of the longest prompt, tokens of the longest response); half of the sequence each if
    the configuration gives none."""
    response: Any = reading.rl.get("response_lengths")
    prompt: Any = reading.rl.get("prompt_lengths")
    if response is None or (reading.seq_len is not None and response >= seq_len):
        response = max(seq_len // 2, 1)
    return int(prompt or max(seq_len - response, 1)), int(response)
