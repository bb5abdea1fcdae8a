"""The commands `best` and `explain`, which print results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.output import (
    InOption,
    JsonOption,
    OptionalStudyArgument,
    StoreOption,
    UrlOption,
    VersionOption,
    consoles,
    emit,
    note,
    print_table,
)
from autotune.cli.quantities import sequence_tokens
from autotune.errors import SpecError


def best(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Study: id, prefix of the id, or name. Default: all studies.",
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Across studies: only this model.")] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Across studies: only this cluster.")
    ] = "",
    trainer: Annotated[
        str, typer.Option("--trainer", help="Across studies: only this trainer.")
    ] = "",
    runner: Annotated[
        str,
        typer.Option(
            "--runner",
            help="Across studies: only this runner. Simulated results are shown only with --runner simulated.",
        ),
    ] = "",
    num_gpus: Annotated[
        int | None,
        typer.Option(
            "--num-gpus", min=1, help="Across studies: only clusters with this many GPUs."
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            min=0.0,
            max=36_500.0,
            help="Across studies: only measurements from the last DAYS days.",
            metavar="DAYS",
        ),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            "--seq-len",
            metavar="TOKENS",
            parser=sequence_tokens,
            help="Across studies: tokens per sequence, for predictions if nothing was measured.",
        ),
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option(
            "--global-batch-size",
            min=1,
            help="Across studies: sequences per step, for predictions if nothing was measured.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            max=1000,
            help="Number of configs to show. Default: 1, or 10 if the study has a target.",
        ),
    ] = None,
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto",
            help="Show the Pareto front of speed, stability, memory headroom and cost.",
        ),
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="Rank by throughput, goodput or cost instead. Across studies, --model and --cluster are needed too.",
        ),
    ] = None,
    stability_weight: Annotated[
        float | None,
        typer.Option(
            "--stability-weight",
            min=0.0,
            max=1.0,
            help="Rank with this stability weight instead. Across studies, --model and --cluster are needed too.",
        ),
    ] = None,
    version: VersionOption = None,
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    json: JsonOption = False,
) -> None:
    """Show the best configs of a study or of all studies.

    If nothing was measured for --model and --cluster, the configs for the most similar measured workload are shown.
    If nothing similar was measured, the cost model's ranking is shown.
    """
    from autotune.cli.named_study import source_with_study
    from autotune.cli.source import open_source, study_and_store

    if folder is not None:
        study, store = study_and_store(study or "", store, url, folder)
    filters: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "trainer": trainer,
        "runner": runner,
        "num_gpus": num_gpus,
        "days": days,
        "seq_len": seq_len,
        "global_batch_size": global_batch_size,
    }
    used = [
        f"--{name.replace('_', '-')}" for name, value in filters.items() if value not in ("", None)
    ]
    if study and used:
        raise SpecError(
            f"{', '.join(used)} can only be used across studies, but the study {study!r} is given too",
            remedy="omit the study, or these options",
        )
    if not study and version:
        raise SpecError(
            "--version needs a study",
            remedy="run `autotune best ID --version torch=2.12`",
            field="--version",
        )
    if not study and pareto:
        raise SpecError("--pareto needs a study", remedy="run `autotune best ID --pareto`")
    if pareto and top is not None and top > 1:
        raise SpecError(
            f"--pareto shows the whole Pareto front, but --top {top} is given too",
            remedy="omit one of these options",
        )
    ranking: dict[str, Any] = {
        "metric": metric,
        "stability_weight": stability_weight,
        "top": top or 1,
    }
    if study:
        with source_with_study(study, store, url) as (source, study):
            document = source.best(study, pareto=pareto, version=version or (), **ranking)
    else:
        del filters["days"]
        after = datetime.now(UTC) - timedelta(days=days) if days is not None else None
        with open_source(store, url, missing="empty") as source:
            document = source.best_across(**filters, measured_after=after, **ranking)
    if (target := document.get("target")) is not None and top:
        document["target"] = {**target, "configs": target["configs"][:top]}
    has_result = document["best"] is not None or target is not None
    if json:
        emit(document)
    elif not has_result:
        note(
            "nothing measured yet"
            if study
            else "no measured config matches; start a study with `autotune tune SPEC`"
        )
        for remark in document["notes"]:
            note(remark)
    elif target is not None:
        from autotune.cli.study_text import export_command, print_target

        print_target(target, top=top)
        note(f"next: {export_command(document, folder)}")
    else:
        _print_best(document, pareto=pareto, folder=folder)
    if not has_result:
        raise typer.Exit(1)


def _print_best(document: dict[str, Any], *, pareto: bool, folder: Path | None) -> None:
    from autotune.cli.study_text import configs_table, export_command, speedup_line, tied_line

    out, _ = consoles()
    if objective := document.get("objective"):
        note(f"ranked by {objective['metric']}, stability weight {objective['stability_weight']:g}")
    if pareto:
        from autotune.report.reward_tables import front_rows

        heads, rows = front_rows(document["configs"])
        print_table(heads, rows, numbers=heads[2:6])
        out.print("no other measured config is at least as good in all four columns")
    elif document.get("source") == "cost_model":
        _print_predicted(document)
    else:
        out.print(configs_table(document.get("configs") or [document["best"]]))
        _print_evidence(document)
        for line in filter(None, (speedup_line(document), tied_line(document))):
            out.print(line)
    # `export` uses the study's own objective
    if document["study"] and (not objective or objective == document["study"]["objective"]):
        note(f"next: {export_command(document, folder)}")


def _print_predicted(document: dict[str, Any]) -> None:
    """Print the cost model's ranking, for a workload without measurements."""
    from autotune.spec import ParallelConfig, config_label
    from autotune.spec.texts.as_text import bytes_cell, count_cell, duration_cell

    rows = []
    for rank, row in enumerate(document["configs"], 1):
        config, predicted = row["best"]["config"], row["best"]["estimate"]
        sizes = count_cell(predicted["tokens_per_s"]), duration_cell(predicted["step_time_s"])
        memory = bytes_cell(predicted["peak_memory_bytes"])
        risk = f"{predicted['oom_probability']:.0%}"
        rows.append(
            [str(rank), config_label(ParallelConfig.from_dict(config)), *sizes, memory, risk]
        )
    numbers = ("tokens/s", "step", "memory", "OOM risk")
    print_table(("rank", "config", *numbers), rows, numbers=numbers)
    print("predicted by the cost model; no study has measured anything similar")
    _print_observed(document)
    assumed = document["assumed"]
    batches = ", ".join(map(str, assumed["global_batch_size"]))
    note(
        f"assumed: {assumed['seq_len']:,} tokens x {batches} sequences, trainer {assumed['trainer']}, space {assumed['space']}"
    )
    for remark in document["notes"]:
        note(remark)


def _print_observed(document: dict[str, Any]) -> None:
    """Print observed runs, which people started themselves."""
    from autotune.spec import ObservedRun, config_label

    for run in map(ObservedRun.from_dict, document.get("observed") or ()):
        if run.config is not None and run.measurement is not None:
            speed = f"{run.measurement.median_tokens_per_s:,.0f} tokens/s"
            print(
                f"observed, not tuned: {speed} with {config_label(run.config)} (run {run.id} of {run.program})"
            )


def _print_evidence(document: dict[str, Any]) -> None:
    """Print which measurements a result across studies is based on."""
    from autotune.report.terminal import format_duration
    from autotune.spec import ParallelConfig, config_label
    from autotune.spec.texts.as_text import number_of

    _print_observed(document)
    if nearest := document.get("nearest"):
        here = nearest["here"]["estimate"]
        workload = f"{nearest['model']} on {nearest['cluster']}, {nearest['seq_len']:,} tokens"
        print(
            f"measured for the nearest workload ({workload}), not for this one; sizes differ by up to a factor of {2 ** nearest['distance']:.2g}"
        )
        print(
            f"for this workload the cost model predicts {here['tokens_per_s']:,.0f} tokens/s for the first config, "
            f"with {here['oom_probability']:.0%} risk of running out of memory"
        )
    if evidence := document.get("evidence"):
        ago = (
            f", the last {format_duration(evidence['age_s'])} ago"
            if evidence["age_s"] is not None
            else ""
        )
        spread = (
            f"; the best config's step times vary by {evidence['spread']:.1%}"
            if evidence["spread"] is not None
            else ""
        )
        counts = f"{number_of(evidence['trials'], 'run')} of {number_of(evidence['configs'], 'config')} in {number_of(evidence['studies'], 'study', 'studies')}"
        print(f"based on: {counts}{ago}{spread}")
    if untried := document.get("untried"):
        first = (
            config_label(ParallelConfig.from_dict(untried["best"]["config"]))
            if untried["best"]
            else ""
        )
        print(
            f"measured: {untried['measured']} of {untried['legal']:,} valid configs"
            + (f"; of the others, {first} has the highest predicted speed" if first else "")
        )
    if "source" in document:
        for remark in document["notes"]:
            note(remark)


def explain(
    study: OptionalStudyArgument = "",
    trial: Annotated[
        int | None, typer.Argument(metavar="TRIAL", help="Number of a trial. Default: the winner.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    folder: InOption = None,
    json: JsonOption = False,
) -> None:
    """Explain why a trial is better or worse than others.

    The parts of the trial's reward are compared with the same parts for the baseline and the runner-up.
    """
    from autotune.cli.named_study import source_with_study
    from autotune.report.reward_tables import formula_rows, reward_rows
    from autotune.reward import STABILITY_RULE

    with source_with_study(study, store, url, folder) as (source, study):
        document = source.explain(study, trial)
    if json:
        emit(document)
        return
    for sentence in [*document["text"], *document.get("notes", ())]:
        print(sentence)
    heads, rows = reward_rows(document)
    if rows:
        print()
        print_table(heads, rows, numbers=heads[1:])
        print(STABILITY_RULE)
        heads, rows = formula_rows(document)
        print_table(heads, rows, numbers=heads[2:])
