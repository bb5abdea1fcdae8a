"""Preference training, such as DPO (Rafailov et al., arXiv 2305.18290): each sample of a batch is a
pair of sequences, and a frozen reference model may run forward beside them.

Plans and probes count sequences, but these programs count samples. So a draft has twice the
program's batch sizes, and placeholders such as `{micro_batch_size // 2}` give the program its own.
"""

from __future__ import annotations

import re
from dataclasses import replace

from autotune.onboarding.draft import Draft, Entry

HAS_REFERENCE = {
    **dict.fromkeys(("dpo", "ipo"), True),
    **dict.fromkeys(("orpo", "simpo", "cpo", "rm", "reward_model"), False),
}
"""methods that train on pairs: whether a reference model scores them"""
PAIR = 2
"""sequences of a pair"""
_BATCH = re.compile(r"\{([^{}]*\b(?:micro_batch_size|global_batch_size)\b[^{}]*)\}")
_MICRO_BATCH = re.compile(r"\bmicro_batch_size=(\d+)")


def as_pairs(draft: Draft, *, has_reference: bool, source: str) -> Draft | None:
    """The draft with batch sizes in sequences, if the program's count pairs. None if the draft does
    not know them. `source`: what says that they do, for a comment."""
    workload, space = draft.value("workload"), draft.value("space")
    batch, sizes = workload.get("global_batch_size"), space.get("micro_batch_size")
    trainer, baseline = draft.at("trainer"), draft.at("baseline")
    if trainer is None or not isinstance(batch, int) or not isinstance(sizes, list):
        return None
    comment = f"{source}: a sample is a pair of sequences, each planned with seq_len tokens"
    rl = {"algorithm": "dpo", **({} if has_reference else {"reference": False})}
    found = draft.put("rl", Entry(key="rl", value=rl, comment=comment), after="workload")
    found = found.edited("workload", value={**workload, "global_batch_size": PAIR * batch})
    doubled = [PAIR * size for size in sizes]
    found = found.edited("space", value={**space, "micro_batch_size": doubled})
    if baseline is not None:
        text = _MICRO_BATCH.sub(lambda m: f"micro_batch_size={PAIR * int(m[1])}", baseline.value)
        found = found.edited("baseline", value=text)
    found = found.put("trainer", trainer.with_texts(lambda text: _BATCH.sub(_of_samples, text)))
    today = {
        _BATCH.sub(_of_samples, f"{{{source}}}")[1:-1]: value
        for source, value in draft.today.items()
    }
    return replace(found, today=today)


def _of_samples(placeholder: re.Match[str]) -> str:
    return f"{{{placeholder[1]} // {PAIR}}}"
