"""Compares a spec with what the probe observed of its program, for one or two configs that were run.

difference      the spec is wrong, or an option does not reach the program; with a remedy
no effect       a knob for which the program behaves equally with two different values
not observed    no conclusion: fp8 kernels, recomputation in compiled code, a model behind another launcher
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.ports import ProgramSeen
from autotune.ports.program_facts import ProgramFacts
from autotune.results.knobs_seen import Row, knob_rows, precision_row
from autotune.spec import ParallelConfig, Study, number_of

PARAMETERS = 0.05
"""tolerated relative difference in the number of parameters: padded vocabularies, biases, norms"""
LENGTH = 0.02
"""tolerated relative difference in sequence length: inputs are often a token shorter"""


def rows_of(study: Study, config: ParallelConfig, seen: ProgramSeen) -> list[Row]:
    """The comparison for one config; empty if the probe observed no training."""
    return list(_rows(study, config, seen)) if seen.facts else []


def _rows(study: Study, config: ParallelConfig, seen: ProgramSeen) -> Iterator[Row]:
    facts, workload = ProgramFacts(seen.facts), study.workload
    yield Row(
        name="ranks",
        said=str(config.world_size),
        seen=str(facts.world),
        agrees=facts.world == config.world_size,
        remedy="make the launcher in trainer.argv start {nproc_per_node} processes on each node, or set matching world_sizes in the space",
    )
    yield from _batch(study, config, seen, facts.world)
    yield precision_row(config, facts)
    optimizer = facts.optimizer
    yield Row(
        name="optimizer",
        said=workload.optimizer,
        seen=facts.optimizers,
        agrees=None if optimizer is None else optimizer == workload.optimizer,
        remedy="correct workload.optimizer, which determines the memory for optimizer states",
        fix=None if optimizer is None else ("workload.optimizer", optimizer),
    )
    yield from knob_rows(config, facts)
    yield _parameters(study, seen, facts)


def _batch(study: Study, config: ParallelConfig, seen: ProgramSeen, world: int) -> Iterator[Row]:
    same_data = config.tp * config.pp * config.cp
    total = seen.sequences * world / same_data if seen.sequences else None
    said = f"{config.global_batch_size} ({config.accumulation_steps} x {config.micro_batch_size} on {number_of(config.dp, 'rank')})"
    micro_batches = f"{number_of(seen.micro_batches or 0, 'micro-batch', 'micro-batches')} a step"
    varies = ", varies" if seen.fills_by_tokens else ""
    observed = f"{total:g}{varies} ({micro_batches})" if total else micro_batches
    yield Row(
        name="sequences per step",
        said=said,
        seen=observed if seen.micro_batches else "",
        agrees=not seen.disagreement if total and not seen.fills_by_tokens else None,
        remedy="correct the batch options in trainer.argv (is the micro-batch per rank or for "
        "all ranks? is accumulation passed?), or workload.global_batch_size",
    )
    length = seen.tokens / seen.sequences if seen.tokens and seen.sequences else None
    expected = study.workload.seq_len
    packed = (
        seen.tokens is not None
        and length is not None
        and length > expected
        and length % expected == 0
    )
    is_open = length is None or seen.lengths_vary  # the longest may have the length of the spec
    varies = " on average, varies" if seen.lengths_vary else ""
    yield Row(
        name="seq_len",
        said=str(expected),
        seen=f"{length:g}{varies}" if length else "",
        agrees=None
        if is_open
        else packed or abs((length or 0) - expected) <= max(1.0, LENGTH * expected),
        remedy="correct workload.seq_len, or the option that sets the length, because tokens/s and memory follow from seq_len",
        fix=None if is_open else ("workload.seq_len", round(length or 0)),
    )


def _parameters(study: Study, seen: ProgramSeen, facts: ProgramFacts) -> Row:
    model, found = study.workload.model, facts.parameters
    told = f"{model.num_parameters:,}" + (" (predicted as a decoder)" if model.is_counted else "")
    is_decoder = seen.tokens is not None and not model.is_counted
    by_count = f"set `model: {{parameters: {found}}}`"
    return Row(
        name="parameters",
        said=told,
        seen=f"{found:,} ({facts.values.get('model', '')})" if found is not None else "",
        agrees=None
        if found is None
        else abs(found - model.num_parameters) <= PARAMETERS * model.num_parameters,
        remedy=f"correct `model`, from which time and memory are predicted; set the model's fields, or {by_count} if no fields describe the model"
        if is_decoder
        else f"{by_count}, because the model's input is not tokens and no decoder shape describes it",
        fix=None if found is None or is_decoder else ("model.parameters", found),
    )


def without_effect(
    first: tuple[ParallelConfig, Sequence[Row]], second: tuple[ParallelConfig, Sequence[Row]]
) -> list[str]:
    """Messages about knobs that differ between two configs although the probe observed the same value,
    which is wrong for at least one of them."""
    (one, rows), (other, other_rows) = first, second
    by_name = {row.name: row for row in rows}
    messages = []
    for row in other_rows:
        before = by_name.get(row.name)
        if (
            before is None
            or not row.seen
            or row.name not in ("precision", "zero_stage", "recompute", "compile")
        ):
            continue
        values = one.value(row.name), other.value(row.name)
        if (
            values[0] != values[1]
            and row.seen == before.seen
            and (row.agrees is False or before.agrees is False)
        ):
            both = " and ".join(
                str(value).lower() if isinstance(value, bool) else str(value) for value in values
            )
            messages.append(
                f"{row.name} has no effect; the probe observed {row.seen} with both {both}"
            )
    return messages
