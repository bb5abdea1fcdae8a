"""The commands `plan`, which ranks all feasible configs by the cost model, and `estimate`, which
prints one config's prediction in detail. Neither needs hardware."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from autotune.cli.commands.onboarding import BatchOption, ClusterOption, ModelOption, SequenceOption
from autotune.cli.exit_codes import BAD_INPUT
from autotune.cli.output import (
    JsonOption,
    NoProfileOption,
    SpecArgument,
    StoreOption,
    consoles,
    emit,
    note,
    note_placeholders,
    palette_of,
    print_table,
    read_study,
)
from autotune.cli.quantities import tokens
from autotune.errors import SpecError


def plan(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="[SPEC]",
            help="Study spec: a YAML or JSON file, - for standard input, or the name of a built-in spec. Without a spec, pass --model, --cluster, --seq-len and --batch.",
        ),
    ] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    seq_len: SequenceOption = None,
    batch: BatchOption = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--trainer", help="With --model: trainer whose overheads are assumed. Default: native."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=100_000, help="Number of configs to show.")
    ] = 10,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N,N,...",
            help="Also show the best config for each of these numbers of GPUs.",
        ),
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            "--clusters",
            metavar="NAME,NAME,...",
            help="Also compare these clusters (h100-sxm-8x8), or these GPU types with as many GPUs as the spec's cluster (h200-sxm).",
        ),
    ] = None,
    train_tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens",
            metavar="TOKENS",
            parser=tokens,
            help="With --gpus or --clusters: also show days, cost and energy to train on this many tokens, e.g. 15T.",
        ),
    ] = None,
    sort: Annotated[
        Literal["speed", "cost", "energy"] | None,
        typer.Option(
            "--sort",
            help="With --clusters: sort by speed, or with --tokens by cost or energy, best first. Default: the order of --clusters.",
        ),
    ] = None,
    no_profile: NoProfileOption = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Also count excluded combinations by reason, and show what this machine lacks.",
        ),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Rank all valid configs by predicted speed; needs no GPU."""
    from autotune import api
    from autotune.plan.clusters import sorted_choices
    from autotune.results.masking import secrets_note
    from autotune.spec.study import SIMULATED
    from autotune.store import open_to_read

    if train_tokens is not None and gpus is None and clusters is None:
        raise SpecError(
            "--tokens works only with --gpus or --clusters",
            remedy="add e.g. --gpus 64,128 or --clusters h100-sxm,h200-sxm",
            field="--tokens",
        )
    if sort is not None and (clusters is None or (sort != "speed" and train_tokens is None)):
        needed = "--clusters" if sort == "speed" else "--clusters and --tokens"
        raise SpecError(
            f"--sort {sort} works only with {needed}",
            remedy="add e.g. --clusters h100-sxm,h200-sxm --tokens 1T",
            field="--sort",
        )
    names = [word.strip() for word in (clusters or "").split(",") if word.strip()]
    # without --cluster, plan for the first of --clusters
    plan_cluster = cluster or next(iter(names), None)
    source = (
        spec
        if spec is not None
        else _document_of_options(model, plan_cluster, seq_len, batch, trainer)
    )
    if spec is not None and (model or cluster or seq_len or batch or trainer):
        raise SpecError(
            "--model, --cluster, --seq-len, --batch and --trainer replace a spec, but a spec is given too",
            remedy="omit either the spec or these options; `--clusters` compares other clusters",
            field="SPEC",
        )
    study, places = read_study(source)
    if spec is not None:
        note_placeholders(spec)
    if secrets := secrets_note(study):
        note(secrets)
    with closing(open_to_read(store)) as database:
        with places:
            ranking = api.plan_of(
                study, top=top, store=database, profile=not no_profile, on_dry_run=_note_dry_run
            )
            local_obstacle = api.cannot_run_here(study)
        proxy_document = (
            api.few_for_many_of(study, top=top, store=database)
            if study.at_hand is not None and ranking.rows
            else {"proxies": [], "target": {}}
        )
        what_if = (
            api.what_if_of(study, _parse_gpu_counts(gpus), tokens=train_tokens, store=database)
            if gpus
            else ()
        )
        compared = (
            api.compare_clusters_of(study, names, tokens=train_tokens, store=database)
            if clusters is not None
            else ()
        )
    compared = sorted_choices(compared, sort) if sort else compared
    document = ranking.to_dict() | {"cannot_run_here": local_obstacle}
    document |= proxy_document if study.at_hand is not None else {}
    policy = _checkpoint_policy(study, ranking)
    document |= {"checkpoints": policy.to_dict()} if policy is not None else {}
    document |= {"what_if": [row.to_dict() for row in what_if]} if gpus else {}
    document |= (
        {"clusters": [choice.to_dict() for choice in compared]} if clusters is not None else {}
    )
    rl = study.workload.rl
    if clusters is not None and rl is not None and rl.generates:
        assumption = f"responses are assumed to be generated as fast on every cluster as on {study.workload.cluster.gpu.name}"
        document["assumed"] = [*document["assumed"], assumption]
        note(f"assumed: {assumption}")
    if json:
        emit(document)
    else:
        _print_plan(study, ranking, what_if, verbose=verbose)
        _print_post_training(ranking)
        _print_proxies(study, ranking, proxy_document["proxies"], proxy_document["target"])
        _print_clusters(compared)
        if policy is not None:
            consoles()[0].print(policy.text)
        _print_source(ranking.source)
        if local_obstacle and spec is not None:
            why = f": {local_obstacle}" if verbose else " (--verbose says why)"
            note(f"the plan needs no GPU, but `autotune tune` cannot run on this machine{why}")
        elif ranking.rows and spec not in (None, "-"):
            note(
                f"next: autotune {'tune' if study.runner == SIMULATED else 'check'} {shlex.quote(spec)}"
            )
    if not ranking.rows and not any(choice.config for choice in compared):
        raise typer.Exit(1)


def _note_dry_run(number: int, count: int, config: str) -> None:
    """Print on stderr which config is dry-run; before the first, also what a dry run costs and how
    to skip it."""
    from autotune.plan.dry_runs import FIRST_PROFILE, dry_run_line

    if number == 1:
        note(FIRST_PROFILE.format(count=count))
    note(dry_run_line(number, count, config))


def _parse_gpu_counts(text: str) -> list[int]:
    """Parse `--gpus`, e.g. `64,128`. Raises `SpecError`."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise SpecError(
            f"--gpus must be whole numbers, but is {text!r}", remedy="e.g. --gpus 64,128,256"
        ) from None


def _document_of_options(
    model: str | None,
    cluster: str | None,
    seq_len: int | None,
    batch: int | None,
    trainer: str | None,
) -> dict[str, Any]:
    """Return the study spec for the command-line options, with the bundled space for its model and
    cluster. Raises `SpecError` if a required option is missing."""
    from autotune.detect import local_cluster
    from autotune.schema.space_models import usual_space

    required = {"--model": model, "--cluster": cluster, "--seq-len": seq_len, "--batch": batch}
    if missing := [name for name, value in required.items() if value is None]:
        raise SpecError(
            f"a plan needs a spec, or --model, --cluster, --seq-len and --batch; missing: {', '.join(missing)}",
            remedy="e.g. autotune plan --model qwen3-8b --cluster h200-sxm-4x8 --seq-len 8192 --batch 512",
            field=missing[0] if len(missing) < len(required) else "SPEC",
        )
    document = {
        "model": model,
        "cluster": cluster,
        "workload": {"seq_len": seq_len, "global_batch_size": batch},
        **({"trainer": trainer} if trainer else {}),
    }
    return document | {
        "space": usual_space(document, base=Path.cwd(), here={"local": local_cluster})
    }


def _checkpoint_policy(study: Any, ranking: Any) -> Any:
    """Return how often a run with the best config should save checkpoints; None if no config fits
    or the spec gives no failure rates."""
    from autotune.spec.study import policy_for

    if not ranking.rows:
        return None
    best = ranking.rows[0]
    return policy_for(study, best.config, float(best.estimate.step_time_s))


def _print_plan(study: Any, ranking: Any, what_if: Any, *, verbose: bool) -> None:
    from autotune.report.cluster_table import format_usd
    from autotune.report.terminal import format_bytes, format_count, plan_table
    from autotune.space.enumeration import in_words
    from autotune.spec import config_label
    from autotune.spec.texts.as_text import count_cell, format_mfu, two_digits

    out, _ = consoles()
    workload = study.workload
    excluded = sum(ranking.infeasible.values())
    out.print(
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"{_batch_text(workload)}, trainer {study.trainer}"
    )
    for line in workload.assumptions:
        out.print(f"assumed: {line}")
    hint = "" if verbose or not excluded else " (--verbose says why)"
    out.print(
        f"{ranking.feasible:,} valid configs that fit; {excluded:,} combinations excluded{hint}"
    )
    if verbose or not ranking.rows:
        for reason, count in in_words(ranking.infeasible).items():
            out.print(f"  {count:>12,}  {reason}")
    if ranking.rows:
        out.print(plan_table(ranking, palette=palette_of(out)))
        out.print("ranked by predicted speed times the probability that the config fits in memory")
        if ranking.not_modelled:
            out.print(
                f"the cost model does not cover these knobs, so the plan shows the first value of each: {', '.join(ranking.not_modelled)}"
            )
    elif ranking.nearest_miss:
        miss = ranking.nearest_miss
        out.print(
            f"no config fits into {format_bytes(workload.cluster.gpu.memory_bytes)}; the nearest miss, {config_label(miss.config)}, "
            f"would need {miss.need}"
        )
        for remedy in miss.remedies:
            out.print(f"  {remedy}")
    if what_if:
        budgeted = any(row.days is not None for row in what_if)
        rows = []
        for row in what_if:
            if row.estimate is None:
                rows.append([f"{row.num_gpus:,}", row.reason])
                continue
            cost = format_usd(row.cost_usd)
            days = "" if row.days is None else two_digits(row.days)
            rate, mfu = (
                count_cell(float(row.estimate.tokens_per_s)),
                format_mfu(float(row.estimate.mfu)),
            )
            spent = (days, cost) if budgeted else ()
            rows.append([f"{row.num_gpus:,}", config_label(row.config), rate, mfu, *spent])
        numbers = ("tokens/s", "MFU", *(("days", "cost") if budgeted else ()))
        print_table(("GPUs", "config", *numbers), rows, numbers=("GPUs", *numbers))


def _batch_text(workload: Any) -> str:
    """Return what one step trains on: sequences and tokens, or for post-training also prompts and
    responses."""
    from autotune.spec.texts.as_text import number_of

    if workload.rl is None:
        batch = ", ".join(map(str, workload.global_batch_sizes))
        return f"{number_of(workload.seq_len, 'token')} x {batch} sequences"
    rl = workload.rl
    contents = (
        f"{number_of(rl.prompts, 'prompt')} x {number_of(rl.responses, 'response')}"
        if rl.generates
        else number_of(rl.sequences, "sequence")
    )
    return f"{rl.algorithm}, {contents} of {rl.tokens / rl.sequences:,.0f} tokens, {number_of(rl.steps, 'optimizer step')}"


def _print_proxies(study: Any, ranking: Any, proxies: Any, findings: Any) -> None:
    """Print the proxies that would run on your cluster for a target's best configs, what proxies
    cannot show, and what is known of the top-ranked config."""
    from autotune.report.target_text import PROXY_HEADS, blind_spots, proxy_rows, statement_sentence
    from autotune.spec import ParallelConfig, config_label

    if not proxies:
        return
    out, _ = consoles()
    target, at_hand = study.workload.cluster, study.at_hand
    out.print(
        f"proxies that would run on {at_hand.name} (the target has {target.num_gpus / at_hand.num_gpus:g} times as many GPUs):"
    )
    print_table(
        PROXY_HEADS,
        proxy_rows(proxies),
        numbers=[head for i, head in enumerate(PROXY_HEADS) if i != 1],
    )
    would_run = [row["proxy"] for row in proxies if row["proxy"]]
    if unknown := blind_spots(name for proxy in would_run for name in proxy["blind"]):
        out.print(f"proxies cannot show: {', '.join(unknown)}")
    first = ParallelConfig.from_dict(findings["configs"][0]["config"])
    ranking_remark = (
        ". The ranking accounts for earlier studies and for the risk of failures and network stalls"
    )
    out.print(
        f"top-ranked before any proxy ran: {config_label(first)}{'' if first == ranking.rows[0].config else ranking_remark}"
    )
    out.print(statement_sentence(findings))


def _print_post_training(ranking: Any) -> None:
    """Print the step's phases for the first config, the splits of the GPUs between training and
    generation, and the step time with more nodes."""
    from autotune.report.terminal import format_duration
    from autotune.spec.estimate import risk_text
    from autotune.spec.texts.as_text import duration_cell, number_of

    out, _ = consoles()
    details = ranking.post_training
    for line in details.get("assumed", ()):
        out.print(f"assumed: {line}")
    if ranking.rows and ranking.rows[0].estimate.phases_s is not None:
        phases = ranking.rows[0].estimate.phases_s.to_dict()
        phase_times = ", ".join(
            f"{name.replace('_', '-')} {format_duration(s)}" for name, s in phases.items() if s > 0
        )
        out.print(f"step time of the first config, by phase: {phase_times}")
    if splits := details.get("splits"):
        heads = (
            "GPUs that train",
            "GPUs that generate",
            "step",
            "training",
            "generation",
            "trainer waits",
            "engine waits",
            "OOM risk",
            "config",
        )
        keys = ("step_time_s", "training_s", "generation_s", "trainer_waits_s", "rollout_waits_s")
        rows = [
            [
                str(row["training_gpus"]),
                str(row["rollout_gpus"]),
                *(duration_cell(row[key]) for key in keys),
                risk_text(row["oom_probability"]),
                row["label"],
            ]
            for row in splits
        ]
        print_table(heads, rows, numbers=heads[:-1])
        best, balanced = min(splits, key=lambda row: row["step_time_s"]), details["balanced"]
        waits = (
            "without staleness, training and generation wait for each other"
            if balanced is None
            else f"with {balanced['rollout_gpus']:.1f} GPUs for generation, neither side would wait"
        )
        out.print(
            f"best split: {number_of(best['training_gpus'], 'GPU')} for training and {best['rollout_gpus']} for generation; {waits}"
        )
    for gpus, reason in details.get("splits_why_not", {}).items():
        out.print(f"there is no split with {number_of(gpus, 'GPU')} for generation: {reason}")
    side_texts = {
        "both": "for both phases",
        "training": "for training",
        "generation": "for generation",
    }
    for side, row in details.get("one_more_node", {}).items():
        why = details["one_more_node_why_not"].get(side, "")
        if row is None:
            out.print(f"one more node {side_texts[side]}: {why}")
            continue
        instead = f" (one node is not enough: {why})" if why else ""
        out.print(
            f"{number_of(row['nodes'], 'more node')} {side_texts[side]}: {format_duration(row['step_time_s'])} a step, with {row['label']}{instead}"
        )


def _print_clusters(compared: Any) -> None:
    from autotune.report.cluster_table import cluster_notes, cluster_table

    out, _ = consoles()
    if compared:
        out.print(cluster_table(compared, palette=palette_of(out)))
        for line in cluster_notes(compared):
            out.print(line)


def _print_source(source: str) -> None:
    from autotune.report.cluster_table import source_words

    note(f"cost model: {source_words(source)}")


def estimate(
    spec: SpecArgument,
    config: Annotated[
        str,
        typer.Option(
            "--config",
            metavar="KNOB=VALUE,...",
            help="The config, e.g. tp=2,pp=1,dp=4,micro_batch_size=2 or 'tp2 pp1 dp4 mb2'. `autotune knobs` lists the knobs.",
        ),
    ],
    no_profile: NoProfileOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Predict step time and memory for one config, broken down into parts.

    For an invalid config, the reason is printed instead.
    """
    from autotune import api
    from autotune.space import complete, why_not_in
    from autotune.store import open_to_read

    study, places = read_study(spec)
    note_placeholders(spec)
    completed = complete(study.workload, config, study.space.own_knobs)
    document: dict[str, Any] = {"config": completed.to_dict()}
    with places, closing(open_to_read(store)) as database:
        if reason := why_not_in(study, completed):
            if json:
                emit(document | {"legal": False, "reason": reason, "estimate": None, "source": ""})
            note(f"invalid: {reason}")
            raise typer.Exit(BAD_INPUT)
        predicted, source = api.estimate_of(
            study, completed, store=database, profile=not no_profile, on_dry_run=_note_dry_run
        )
    if json:
        document |= {"legal": True, "reason": "", "estimate": predicted.to_dict()}
        emit(document | {"source": source, "assumed": list(study.workload.assumptions)})
        return
    _print_estimate(completed, predicted, study.workload.cluster)
    for line in study.workload.assumptions:
        note(f"assumed: {line}")
    _print_source(source)


def _print_estimate(config: Any, predicted: Any, cluster: Any) -> None:
    from autotune.cost.learn.correction import after_one_trial
    from autotune.report.terminal import (
        format_bytes,
        format_count,
        format_duration,
        time_bar,
        time_legend,
    )
    from autotune.spec import config_label
    from autotune.spec.estimate import risk_text
    from autotune.spec.texts.as_text import bytes_cell, duration_cell, format_mfu

    out, _ = consoles()
    palette = palette_of(out)
    low, high = (
        format_duration(float(v)) for v in (predicted.step_time_low_s, predicted.step_time_high_s)
    )
    idle = cluster.num_gpus - config.world_size
    out.print(
        config_label(config)
        + (f"   ({idle:,} of {cluster.num_gpus:,} GPUs stay idle)" if idle else "")
    )
    out.print(
        f"step      {format_duration(float(predicted.step_time_s))}   (90%: {low} to {high}; "
        f"within {after_one_trial(predicted):.0%} once a trial has run on the cluster)"
    )
    if predicted.stall_probability > 0:
        out.print(
            f"stalls    {float(predicted.stall_probability):.0%} chance of a stall when stages on different nodes exchange activations; a stalled step takes "
            f"{format_duration(float(predicted.stalled_step_time_s))}"
        )
    out.print(
        f"speed     {format_count(float(predicted.tokens_per_s))} tokens/s, "
        f"{format_count(float(predicted.tokens_per_s_per_gpu))} per GPU, MFU {format_mfu(float(predicted.mfu))}"
    )
    out.print(f"          {time_bar(predicted.time_parts_s, palette=palette)}", markup=True)
    out.print(f"          {time_legend(predicted.time_parts_s, palette=palette)}", markup=True)
    for parts in filter(None, (predicted.time_parts_s, predicted.phases_s)):
        for name, seconds in parts.to_dict().items():
            if seconds > 0:
                out.print(f"  {name:12}{duration_cell(seconds):>12}")
        if parts is predicted.time_parts_s and predicted.phases_s is not None:
            out.print("  by phases:")
    low, high = (
        format_bytes(float(v))
        for v in (predicted.peak_memory_low_bytes, predicted.peak_memory_high_bytes)
    )
    out.print(
        f"memory    {format_bytes(float(predicted.peak_memory_bytes))} of {format_bytes(cluster.gpu.memory_bytes)}   (90%: {low} to {high}), "
        f"{risk_text(float(predicted.oom_probability))} risk of running out"
    )
    out.print(f"          {time_bar(predicted.memory_parts_bytes, palette=palette)}", markup=True)
    out.print(
        f"          {time_legend(predicted.memory_parts_bytes, palette=palette)}", markup=True
    )
    for name, size in predicted.memory_parts_bytes.to_dict().items():
        if size > 0:
            out.print(f"  {name:12}{bytes_cell(size):>12}")
