"""Preference training, such as DPO (Rafailov et al., arXiv 2305.18290): each sample of a batch is a
pair of sequences, and a frozen reference model may run forward beside them.

Plans and probes count sequences, but these programs count samples. So a draft has twice the
program's batch sizes, and placeholders such as `{micro_batch_size // 2}` give the program its own.
"""

from __future__ import annotations

import re
from dataclasses import replace

from autotune.onboarding.draft import Draft, Entry
from autotune.onboarding.script.adapters import NOT_PREDICTED
from autotune.onboarding.script.library_options import left_out_of_pairs

PAIR = 2
"""sequences of a pair"""
_BATCH = re.compile(r"\{([^{}]*\b(?:micro_batch_size|global_batch_size)\b[^{}]*)\}")
_MICRO_BATCH = re.compile(r"\bmicro_batch_size=(\d+)")


def as_pairs(draft: Draft, *, has_reference: bool, source: str) -> Draft:
    """The draft of a program whose batch sizes count pairs, with batch sizes in sequences. If the
    draft does not know them, it gets a note on what is not predicted. `source`: what says that the
    program trains on pairs, for texts."""
    workload, space = draft.value("workload"), draft.value("space")
    batch, sizes = workload.get("global_batch_size"), space.get("micro_batch_size")
    written, trainer, baseline = map(draft.at, ("workload", "trainer", "baseline"))
    has_sizes = isinstance(batch, int) and isinstance(sizes, list)
    if written is None or trainer is None or not has_sizes:
        return draft.noting(f"{NOT_PREDICTED}{left_out_of_pairs(has_reference)} ({source})")
    comment = f"{source}: a sample is a pair of sequences, each planned with seq_len tokens"
    rl = {"algorithm": "dpo", **({} if has_reference else {"reference": False})}
    found = draft.put("rl", Entry(key="rl", value=rl, comment=comment), after="workload")
    entry = Entry(
        key="workload",
        value={**workload, "global_batch_size": PAIR * batch},
        comment=f"{written.comment}, two sequences each",
    )
    found = found.put("workload", entry)
    doubled = [PAIR * size for size in sizes]
    found = found.edited("space", value={**space, "micro_batch_size": doubled})
    if baseline is not None:
        text = _MICRO_BATCH.sub(lambda m: f"micro_batch_size={PAIR * int(m[1])}", baseline.value)
        found = found.edited("baseline", value=text)
    found = found.put("trainer", _counting_samples(trainer.with_texts(_in_samples)))
    today = {
        _in_samples(f"{{{expression}}}")[1:-1]: value for expression, value in draft.today.items()
    }
    return replace(found, today=today)


def _in_samples(text: str) -> str:
    """The text with placeholders of batch sizes in samples instead of sequences."""
    return _BATCH.sub(lambda placeholder: f"{{{placeholder[1]} // {PAIR}}}", text)


def _counting_samples(entry: Entry) -> Entry:
    """The entry with comments on batch sizes that say what the program counts."""
    items = tuple(replace(each, comment=_of_pairs(each.comment)) for each in entry.items)
    parts = tuple(_counting_samples(part) for part in entry.parts)
    return replace(entry, comment=_of_pairs(entry.comment), items=items, parts=parts)


def _of_pairs(comment: str) -> str:
    return comment.replace("sequences per rank", "pairs per rank")
