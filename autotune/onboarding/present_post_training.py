"""The `rl` and `rollout` of a draft, from the configuration of a program that post-trains.

A configuration says how long prompts and responses may be, not how long they are, and never how
fast they are generated: these are asked for, with the log of a run as the short way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotune.onboarding.draft import Entry, filled
from autotune.schema.rl_documents import USUAL
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout
from autotune.trainers.post_training.logs import read_phases
from autotune.trainers.present_configuration import Reading

STAND_IN_RATE = 1000.0
SHARE = 0.25
"""mean length of a draft as a share of the largest that may come, until it is filled in"""
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
"""by the engine that trains"""
SPEED = "tokens_per_s_per_gpu"
LENGTHS = ("prompt_lengths", "response_lengths")


NO_TIME = 1e15
"""tokens per second per GPU of a generation whose time is left out"""


def asked_of_post_training(reading: Reading) -> list[str]:
    """What a person must fill in."""
    if not reading.rl:
        return []
    missing = [] if "prompts" in reading.rl else ["rl.prompts"]
    return [*missing, *(f"rl.{name}" for name in LENGTHS), f"rollout.{SPEED}"]


def post_training_entries(reading: Reading, seq_len: int) -> tuple[Entry, ...]:
    """`rl`, `rollout` and the knobs that may differ, for a draft."""
    if not reading.rl:
        return ()
    rl = {name: value for name, value in reading.rl.items() if name not in LENGTHS}
    rl = {"algorithm": rl.pop("algorithm"), "prompts": rl.pop("prompts", 1), **rl}
    longest = _longest(reading, seq_len)
    lengths = {
        name: {"mean": max(round(SHARE * most), 1), "max": most}
        for name, most in zip(LENGTHS, longest, strict=True)
    }
    how = "fill in: prompt and response lengths, as mean and percentiles or as {log: run.log} from your own run"
    speed = "fill in: generated tokens per second per GPU, or write `log: run.log` instead"
    tokens = rl.get("micro_batch_tokens")
    knobs = {"micro_batch_tokens": [tokens // 2, tokens, 2 * tokens]} if tokens else {}
    return filled(
        Entry(key="rl", value={**rl, **lengths}, comment=how),
        Entry(key="rollout", value={SPEED: STAND_IN_RATE, **reading.rollout}, comment=speed),
        Entry(key="knobs", value=knobs),
    )


def post_training_space(reading: Reading, trainer: str) -> dict[str, Any]:
    """The space of a draft: what engines of that kind can run at all, and what is used today. The
    trainer's own limits and the laws of a space leave out the rest."""
    engine = reading.rl.get("engine") or USUAL[trainer][0]
    packs = bool(reading.rl.get("micro_batch_tokens"))
    space: dict[str, Any] = dict(SPACES[engine])
    space["micro_batch_size"] = [1] if packs else {"powers_of_two": [1, 16]}
    space["precision"] = [reading.knobs.get("precision", "bf16")]
    if (experts := reading.knobs.get("ep", 1)) > 1:
        space["ep"] = {"powers_of_two": [1, max(experts, 8)]}
    for name, values in space.items():
        if isinstance(values, list) and name in reading.knobs:
            today = reading.knobs[name]
            space[name] = [today] if name in reading.held else [*values, *({today} - set(values))]
    return space


def answered_by_log(
    document: Mapping[str, Any], text: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(`rl` and `rollout` of a draft with what a verl, NeMo-RL, OpenRLHF or TRL log says, the keys
    that this answers)."""
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
    """(`rl` and `rollout` of a draft, with lengths that nobody told at their limit and without a
    generation whose speed nobody told, what that assumes).

    `seq_len`: tokens of the longest sequence, where the launch does not say them.
    """
    rl, rollout, assumed, asked = (
        dict(document["rl"]),
        dict(document["rollout"]),
        [],
        set(open_keys),
    )
    limits = {key: rl[key]["max"] for key in LENGTHS if f"rl.{key}" in asked}
    if seq_len is not None and "prompt_lengths" in limits:
        limits["prompt_lengths"] = max(seq_len - rl["response_lengths"]["max"], 1)
    rl |= {key: {"mean": limit, "max": limit} for key, limit in limits.items()}
    if limits:
        said = " and ".join(
            f"every {key.partition('_')[0]} has {limit:,} tokens" for key, limit in limits.items()
        )
        assumed.append(
            f"{said}, which is the limit, so time and memory are upper bounds; pass --log to read the lengths from a run's log"
        )
    if f"rollout.{SPEED}" in asked:
        rollout[SPEED] = NO_TIME
        assumed.append(
            f"times exclude generation; pass --log to read generation times from a "
            f"log, or set rollout.{SPEED} in a spec"
        )
    return {"rl": rl, "rollout": rollout}, tuple(assumed)


def present_post_training(reading: Reading, batch: int) -> PostTraining:
    """What the configuration says, with stand-ins for what it does not: for a launch that is only
    read again."""
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
    way = next((name for name in ("split", "async") if name in placement), "colocated")
    tp = int(reading.rollout.get("tp", 1))
    rl.setdefault("balance", next((balance for _, balance, _ in USUAL.values()), "batch"))
    return PostTraining(
        **rl,
        prompts=prompts,
        responses=responses,
        prompt_lengths=Lengths(values=(float(prompt),)),
        response_lengths=Lengths(values=(float(response),)),
        placement=way,
        rollout_gpus=placement[way][1] if placement else 0,
        staleness=float(placement.get("staleness", 0.0)) if placement else 0.0,
        rollout=Rollout(
            tokens_per_s_per_gpu=((tp, STAND_IN_RATE),),
            tp=tp,
            memory_fraction=float(reading.rollout.get("memory_fraction") or 0.0),
            sleeps=reading.rollout.get("sleeps", True),
        ),
    )


def _longest(reading: Reading, seq_len: int) -> tuple[int, int]:
    """(tokens of the longest prompt, of the longest response); half of the sequence each where
    nothing tells."""
    response: Any = reading.rl.get("response_lengths")
    prompt: Any = reading.rl.get("prompt_lengths")
    if response is None or (reading.seq_len is not None and response >= seq_len):
        response = max(seq_len // 2, 1)
    return int(prompt or max(seq_len - response, 1)), int(response)
