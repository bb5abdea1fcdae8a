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
ADAPTERS = 0.1
"""share of weights below which those that are trained are taken for adapters, if the spec has none"""
BATCH = "sequences per step"
DEGREES = "declare the program's degrees under trainer, such as `fixed: {{{}: 2}}`"


def rows_of(study: Study, config: ParallelConfig, seen: ProgramSeen) -> list[Row]:
    """The comparison for one config; empty if the probe observed no training."""
    return list(_rows(study, config, seen)) if seen.facts else []


def _rows(study: Study, config: ParallelConfig, seen: ProgramSeen) -> Iterator[Row]:
    facts, workload = ProgramFacts(seen.facts), study.workload
    is_split = facts.is_split and config.tp * config.pp * config.ep == 1
    yield Row(
        name="ranks",
        said=str(config.world_size),
        seen=f"{facts.world}{' with different weights' if is_split else ''}",
        agrees=facts.world == config.world_size and not is_split,
        remedy=f"the program does not average gradients, or it splits the model over its ranks; if so, {DEGREES.format('pp')}"
        if is_split
        else "make the launcher in trainer.argv start {nproc_per_node} processes on each node, or set matching world_sizes in the space",
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
        remark=f"the optimizer {facts.optimizers} is counted as {workload.optimizer}, because the memory of its states is unknown"
        if facts.optimizers and optimizer is None
        else "",
    )
    yield from knob_rows(config, facts)
    yield _parameters(study, seen, facts)
    yield from _trained(study, facts)
    yield from _unplanned(study, config, facts)


def _batch(study: Study, config: ParallelConfig, seen: ProgramSeen, world: int) -> Iterator[Row]:
    same_data = config.tp * config.pp * config.cp
    total = seen.sequences * world / same_data if seen.sequences else None
    said = f"{config.global_batch_size} ({config.accumulation_steps} x {config.micro_batch_size} on {number_of(config.dp, 'rank')})"
    micro_batches = f"{number_of(seen.micro_batches or 0, 'micro-batch', 'micro-batches')} a step"
    varies = ", varies" if seen.fills_by_tokens else ""
    observed = f"{total:g}{varies} ({micro_batches})" if total else micro_batches
    yield Row(
        name=BATCH,
        said=said,
        seen=observed if seen.micro_batches else "",
        agrees=not seen.disagreement if total and not seen.fills_by_tokens else None,
        remedy="correct the batch options in trainer.argv (is the micro-batch per rank or for "
        "all ranks? is accumulation passed?), or workload.global_batch_size",
    )
    length = seen.tokens / seen.sequences if seen.tokens and seen.sequences else None
    expected = study.workload.seq_len
    share = config.global_batch_size * same_data / world * expected
    # several sequences in one row
    is_packed = (length or 0) > expected and abs((seen.tokens or 0) - share) <= LENGTH * share
    is_open = length is None or seen.lengths_vary  # the longest may have the length of the spec
    varies = " on average, varies" if seen.lengths_vary else ""
    yield Row(
        name="seq_len",
        said=str(expected),
        seen=f"{length:g}{varies}" if length else "",
        agrees=None
        if is_open
        else is_packed or abs((length or 0) - expected) <= max(1.0, LENGTH * expected),
        remedy="correct workload.seq_len, or the option that sets the length, because tokens/s and memory follow from seq_len"
        + (f"; if ranks share each sequence, {DEGREES.format('cp')}" if world > config.cp else ""),
        fix=None if is_open else ("workload.seq_len", round(length or 0)),
    )


def _has_adapters(study: Study, facts: ProgramFacts) -> bool:
    """Whether the trained weights are adapters: few, and if the spec has none, also in addition to
    the weights of the model, unlike its own last layer."""
    trained, found = facts.trained, facts.parameters or 0
    if trained is None or study.workload.peft:
        return trained is not None and trained < found / 2
    planned = study.workload.model.num_parameters
    return trained < ADAPTERS * found and abs(found - trained - planned) < abs(found - planned)


def _trained(study: Study, facts: ProgramFacts) -> Iterator[Row]:
    """How many of the weights are trained and whether any is kept in fp32, where that differs from a
    plan that trains all of them with an fp32 copy."""
    workload, peft = study.workload, study.workload.peft
    trained, found = facts.trained, facts.parameters
    if trained is not None and found and (peft or trained < (1 - PARAMETERS) * found):
        has_adapters = _has_adapters(study, facts)
        count = f"{trained:,} of {found:,}"
        yield Row(
            name="trained weights",
            said=f"adapters ({peft.method}, rank {peft.rank})" if peft else "all",
            seen=count,
            agrees=has_adapters == bool(peft) if has_adapters or peft else None,
            remedy="remove `peft` from workload"
            if peft
            else "if these are adapters, set `peft: {method: lora, rank: ...}` in workload, because gradients and optimizer states are planned for all weights",
            remark=""
            if has_adapters or peft
            else f"{count} weights are trained, but all are planned as trained, so the program needs less memory than planned",
        )
    is_pure = facts.is_pure_bf16
    if workload.pure_bf16 != is_pure and not workload.shards_in_fp32 and facts.weights and not peft:
        yield Row(
            name="pure_bf16",
            said=str(workload.pure_bf16).lower(),
            seen="true (weights and optimizer)" if is_pure else f"weights in {facts.weights}",
            agrees=False if is_pure or facts.weights == "fp32" else None,
            remedy="correct workload.pure_bf16, which determines the memory for weights, gradients and optimizer states",
            fix=("workload.pure_bf16", str(is_pure).lower()),
        )


def _parameters(study: Study, seen: ProgramSeen, facts: ProgramFacts) -> Row:
    model, found = study.workload.model, facts.parameters
    if found is not None and study.workload.peft and _has_adapters(study, facts):
        found -= facts.trained or 0  # they are beside the model's weights
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


def _unplanned(study: Study, config: ParallelConfig, facts: ProgramFacts) -> Iterator[Row]:
    """What costs memory or time and is in no plan of this spec."""
    rl, values = study.workload.rl, facts.values
    if frozen := int(values.get("frozen") or 0):
        yield Row(
            name="other models",
            said="reference" if rl is not None and rl.reference else "none",
            seen=f"{frozen:,} weights",
            agrees=None,
            remark=f"the program calls other models with {frozen:,} weights, which it does not train, such as a reference or teacher; "
            "without `rl.reference`, neither their memory nor their time is planned"
            if rl is None or not rl.reference
            else "",
        )
    if copied := int(values.get("copied") or 0):
        yield Row(
            name="copies of weights",
            said="none",
            seen=f"{copied:,} weights",
            agrees=None,
            remark=f"the program keeps copies of {copied:,} weights that no optimizer uses, such as a moving average (EMA), so it needs more memory than planned",
        )
    if values.get("offloads") and config.offload not in ("optimizer", "all"):
        yield Row(
            name="offload",
            said=config.offload,
            seen="weights in host memory",
            agrees=None,
            remark="FSDP keeps weights in host memory between passes, but they are planned on the GPU, which is faster, so the program needs less GPU memory than planned",
        )
    if "DataParallel" in values.get("wrappers", ()):
        yield Row(
            name="devices",
            said=number_of(config.world_size, "rank"),
            seen="1 process for all visible GPUs (DataParallel)",
            agrees=None,
            remark="nn.DataParallel divides each batch over all visible GPUs in one process, and a trial sees only the GPUs of its config; "
            "the spec plans one process per GPU, so trials on fewer GPUs than your launch measure a different batch per GPU. DistributedDataParallel with torchrun does not have this limit",
        )


def without_effect(first: Sequence[Row], second: Sequence[Row]) -> dict[str, str]:
    """By name of the row, a message where the spec differs between two configs although the probe
    observed the same value, which is wrong for at least one of them."""
    before = {row.name: row for row in first}
    messages = {}
    for row in second:
        same = before.get(row.name)
        if same is None or not row.seen or row.seen != same.seen or row.said == same.said:
            continue
        if row.agrees is False or same.agrees is False:
            what = "batch options have" if row.name == BATCH else f"{row.name} has"
            messages[row.name] = (
                f"{what} no effect; the probe observed {row.seen} with both {same.said} and {row.said}, "
                "so the program may not read the option or file, or may replace its value"
            )
    return messages
