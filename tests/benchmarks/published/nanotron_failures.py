"""Failures of nanotron's sweep that memory cannot have caused. The sweep does not print causes; its
other columns and nanotron's code tell these.

too few micro-batches   the 1F1B engine asserts m >= p - 1 before the first step (m micro-batches, p pipeline ranks)
rank without blocks     the same engine asserts that each rank has p - rank - 1 backward passes left after its steady phase. A rank without any block has
                        none, so each such rank but the last fails. `build_model` fills the ranks in order up to equal shares of the compute, and
                        what follows the output projection may start a new rank: a 1B whose projection costs four layers leaves ranks empty at p >= 16.
room in another run     a config that needs at least as much memory ran with room to spare: the same model, tp and pp, as large a micro-batch, as many
                        micro-batches in flight, and optimizer states that are cut no finer

Sources: huggingface/nanotron, src/nanotron/parallel/pipeline_parallel/engine.py
(OneForwardOneBackwardPipelineEngine) and src/nanotron/models/base.py (build_model). A failure near
the limit stays one of memory, even if the same config ran in another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from autotune.spec import ModelSpec, ParallelConfig
from tests.benchmarks.published.rows import GIB, Run

TOO_FEW = "fewer micro-batches than pipeline ranks less one"
EMPTY_RANK = "a pipeline rank without blocks"
ROOM = "a config that needs at least as much memory ran with room to spare"
ROOMY_BYTES = 64.0 * GIB
"""reserved by a run with room to spare on a GPU of 80 GiB"""


def cause_of(run: Run, others: Sequence[Run]) -> str:
    """Why a failed run cannot have failed for memory, in words; empty when memory may be the cause.
    `others`: all runs of the sweep."""
    if not run.failed:
        return ""
    if run.config.accumulation_steps < run.config.pp - 1:
        return TOO_FEW
    if not all(blocks_by_rank(run.model, run.config.pp)[:-1]):
        return EMPTY_RANK
    roomy = (
        o for o in others if o.peak_memory_bytes < ROOMY_BYTES and o.model.name == run.model.name
    )
    return ROOM if any(needs_no_more(run.config, o.config) for o in roomy) else ""


def needs_no_more(one: ParallelConfig, other: ParallelConfig) -> bool:
    """Whether no rank of `one` holds more than the same rank of `other`, whatever the sizes of its
    parts are."""
    if (one.tp, one.pp) != (other.tp, other.pp) or one.micro_batch_size > other.micro_batch_size:
        return False
    in_flight = [min(c.accumulation_steps, c.pp) for c in (one, other)]
    # gradients are reduced through buffers once there are two data-parallel ranks, so a run without
    # them proves nothing
    reduced = one.dp == 1 or other.dp > 1
    cut_as_fine = other.zero_stage == 0 or (one.zero_stage > 0 and one.dp >= other.dp)
    return in_flight[0] <= in_flight[1] and reduced and cut_as_fine


def blocks_by_rank(model: ModelSpec, p: int) -> list[int]:
    """Blocks of each pipeline rank: the embedding, the layers, the last norm, the output projection
    and the cast of the logits."""
    h = model.hidden_size
    layer = 4 * model.num_attention_heads * model.head_dim * h + 3 * model.ffn_hidden_size * h
    costs = [0, *[layer] * model.num_layers, 0, model.vocab_size * h, 0]
    counts, rank = [0] * p, 0
    for filled in accumulate(costs):
        counts[rank] += 1
        if filled * p >= sum(costs) * (rank + 1) and rank < p - 1:
            rank += 1
    return counts
