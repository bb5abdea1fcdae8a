"""What came out: best, explain."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autotune.cli.output import JsonOption, StoreOption, StudyArgument, UrlOption, consoles, emit, note


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(best)
    app.command()(explain)


def best(
    study: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Study; without one, all history is asked.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Across history: this model.")] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Across history: this cluster.")] = "",
    trainer: Annotated[str, typer.Option("--trainer", help="Across history: this trainer.")] = "",
    runner: Annotated[
        str,
        typer.Option("--runner", help="Across history: this runner. Simulated results are shown only if it is named."),
    ] = "",
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="How many configs.")] = 1,
    pareto: Annotated[
        bool,
        typer.Option("--pareto", help="Configs that no other beats in speed, stability, memory headroom and cost."),
    ] = False,
    metric: Annotated[
        str | None, typer.Option("--metric", help="Rank a study's trials again by throughput, goodput or cost.")
    ] = None,
    stability_weight: Annotated[
        float | None, typer.Option("--stability-weight", min=0.0, max=1.0, help="Rank again with this weight.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Shows the best configurations of a study, or across all history."""
    from autotune.cli.source import open_source
    from autotune.errors import SpecError

    if study and (model or cluster or trainer or runner):
        raise SpecError(
            "--model, --cluster, --trainer and --runner ask across history, but a study was named",
            remedy="leave one out",
        )
    if not study and (pareto or metric or stability_weight is not None):
        raise SpecError(
            "--pareto, --metric and --stability-weight need a study", remedy="name one: autotune best ID ..."
        )
    if pareto and top > 1:
        raise SpecError("--pareto shows the whole front, but --top was given too", remedy="leave one out")
    with open_source(store, url) as source:
        if study:
            document = source.best(study, top=top, pareto=pareto, metric=metric, stability_weight=stability_weight)
        else:
            document = source.best_across(model=model, cluster=cluster, trainer=trainer, runner=runner, top=top)
    found = document["best"] is not None
    if json:
        emit(document)
    elif not found:
        note("no measured configuration" + (" yet" if study else " matches; start a study with: autotune tune SPEC"))
    else:
        _print_best(document, pareto=pareto)
    if not found:
        raise typer.Exit(1)


def _print_best(document: dict[str, Any], *, pareto: bool) -> None:
    from autotune.cli.live import configs_table, export_command, speedup_line

    out, _ = consoles()
    if asked := document.get("objective"):
        note(f"ranked by {asked['metric']}, stability weighing {asked['stability_weight']:g}")
    if pareto:
        from autotune.report.worth import front_rows

        _print_rows(*front_rows(document["configs"]), text=2)
        out.print("no other measured config is at least as good in all four and better in one")
    else:
        out.print(configs_table(document.get("configs") or [document["best"]], study=document["study"]))
        if line := speedup_line(document):
            out.print(line)
    if document["study"]:
        note(f"next: {export_command(document['study']['id'], document.get('exports') or ())}")


def _print_rows(heads: list[str], rows: list[list[str]], *, text: int) -> None:
    """A table whose first `text` columns are words and whose others are numbers."""
    from autotune.cli.live import bare_table

    out, _ = consoles()
    table = bare_table()
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def explain(
    study: StudyArgument,
    trial: Annotated[
        int | None, typer.Argument(metavar="[TRIAL]", help="Number of a trial; the winner when left out.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Says why a trial won or lost: its reward by parts, against the baseline and the runner-up."""
    from autotune.cli.source import open_source
    from autotune.report.worth import PRODUCT, reward_rows

    with open_source(store, url) as source:
        document = source.explain(study, trial)
    if json:
        emit(document)
        return
    for sentence in document["text"]:
        print(sentence)
    heads, rows = reward_rows(document)
    if rows:
        print()
        _print_rows(heads, rows, text=1)
        print(PRODUCT)
