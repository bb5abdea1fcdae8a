"""The command `fit`: check by dry runs of the model's own code, without a GPU, whether the model
fits in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.exit_codes import FAILED
from autotune.cli.output import (
    JsonOption,
    SpecArgument,
    StoreOption,
    consoles,
    emit,
    note,
    note_placeholders,
    palette_of,
    read_study,
    reject_dash,
    write_text,
)
from autotune.cli.quantities import memory_gib, time_s
from autotune.errors import DryRunError, SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.plan.fit import Fit, RankProgress
    from autotune.ports import DryRunLimits, KnowledgeStore
    from autotune.report.fit_text import TextTable
    from autotune.report.terminal import Palette
    from autotune.space import SearchSpace
    from autotune.spec import Study


def fit(
    spec: SpecArgument,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="KNOB=VALUE,...",
            help="The config to check, e.g. tp=2,micro_batch_size=4. Default: the plan's best config, or the nearest miss if no config is expected to fit.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, max=1000, help="Check this many of the plan's best configs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.html",
            callback=reject_dash,
            help="Also write the answer as an HTML page with figures.",
        ),
    ] = None,
    max_wall_s: Annotated[
        float,
        typer.Option(
            "--max-wall-s",
            metavar="TIME",
            parser=time_s(least=1),
            help="Stop a dry run after this time, e.g. 10min.",
        ),
    ] = 600.0,
    max_memory_gib: Annotated[
        float,
        typer.Option(
            "--max-memory-gib",
            metavar="GIB",
            parser=memory_gib(least=0.25),
            help="Stop a dry run whose process uses more memory than this, in GiB or with a unit, e.g. 16GB.",
        ),
    ] = 8.0,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Also dry-run the plan's best configs, and a few more to correct the formulas for all other configs. plan, estimate and tune then use these memory figures.",
        ),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether the model fits in memory; needs no GPU.

    The command runs two optimizer steps of the model's own code without data, as one rank of the
    job. The answer shows how much memory is allocated when and for what, and lists FLOPs and
    communication. Your own model (model: {module: ...}) is built in a separate process on this
    machine.

    Exit code 0 means that the config, or at least one of several configs, is expected to fit. Exit code 1
    means that no config is expected to fit, or that no dry run was possible. Exit code 2 means bad input.
    """
    from autotune import api
    from autotune.ports import DryRunLimits
    from autotune.space import SearchSpace, complete
    from autotune.store import open_to_read

    if config is not None and top is not None:
        raise SpecError(
            "--config and --top cannot be combined",
            remedy="omit one of these options",
            field="--top",
        )
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise SpecError(
            f"the page must be an .html file, but is {output}",
            remedy="e.g. -o fit.html",
            field="-o",
        )
    limits = DryRunLimits(wall_s=max_wall_s, memory_bytes=max_memory_gib * 2**30)
    study, places = read_study(spec, limits=limits)
    note_placeholders(spec)
    chosen = None if config is None else complete(study.workload, config, study.space.own_knobs)
    with places, closing(open_to_read(store)) as database:
        space = SearchSpace.of_study(study) if profile else None
        with _progress() as on_rank:
            answers = api.fit(
                study,
                chosen,
                top=top or 1,
                store=database,
                limits=limits,
                on_rank=on_rank,
                space=space,
            )
        profiled = None if space is None else _profile(study, space, database, limits)
    if output is not None:
        from autotune.report.fit_page import fit_page

        write_text(output, fit_page(answers), field="-o")
    if json:
        emit(api.fits_document(answers, profile=profiled[0] if profiled else None))
    else:
        _print(answers, chosen_by_plan=config is None)
        if profiled is not None:
            from autotune.report.terminal import safe

            out, _ = consoles()
            for line in profiled[1]:
                out.print(safe(line, palette_of(out)))
    if output is not None:
        note(f"wrote {output}")
    if not any(answer.fits for answer in answers) or (
        profiled is not None and "problem" in profiled[0]
    ):
        raise typer.Exit(FAILED)


def _profile(
    study: Study, space: SearchSpace, store: KnowledgeStore, limits: DryRunLimits
) -> tuple[dict[str, Any], list[str]]:
    """Return the results of dry runs of the plan's best configs, as a document and in sentences; if
    a dry run is impossible, return the reason."""
    from autotune.cost import calibration_for
    from autotune.plan.dry_runs import dry_run_line, profile_document, profile_lines, profile_study
    from autotune.results.calibrations import known_constants, program_of

    try:
        profile = profile_study(
            study,
            store=store,
            limits=limits,
            space=space,
            on_run=lambda *run: note(dry_run_line(*run)),
        )
    except DryRunError as error:
        problem = {"problem": error.message, "remedy": error.remedy}
        return problem, [
            f"a dry run was impossible: {error.message}",
            *([f"  {error.remedy}"] if error.remedy else []),
        ]
    document = profile_document(
        profile,
        space,
        known_constants(study.workload, store, program_of(study))
        or calibration_for(study.workload),
    )
    return document, profile_lines(document)


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield the function that prints on stderr which rank is dry-run and how long that took."""
    from rich.status import Status
    from rich.text import Text

    from autotune.spec import config_label
    from autotune.spec.texts.as_text import format_duration

    _, err = consoles()
    status: Status | None = err.status("") if err.is_terminal else None
    if status is not None:
        status.start()

    def on_rank(progress: RankProgress) -> None:
        config_text = (
            f"config {progress.config_number} of {progress.config_count}, "
            if progress.config_count > 1
            else ""
        )
        line = f"{config_text}dry run {progress.number} of {progress.count}: pipeline rank {progress.pp_rank} of {config_label(progress.config)}"
        if progress.run is not None:
            note(f"{line}: {format_duration(progress.run.took_s)}")
        elif status is not None:
            status.update(Text(line))

    try:
        yield on_rank
    finally:
        if status is not None:
            status.stop()


def _print(answers: Sequence[Fit], *, chosen_by_plan: bool) -> None:
    from autotune.report.fit_text import summary_line, summary_table

    out, _ = consoles()
    palette = palette_of(out)
    if len(answers) > 1:
        out.print(summary_line(answers), style="bold")
        _table(out, summary_table(answers), palette)
    for answer in answers:
        _print_one(out, answer, palette, chosen_by_plan=chosen_by_plan)


def _print_one(out: Console, answer: Fit, palette: Palette, *, chosen_by_plan: bool) -> None:
    from autotune.report.fit_text import (
        closing_lines,
        other_verdict_line,
        peak_lines,
        problem_lines,
        rank_names,
        tables,
        verdict_line,
        work_line,
        workload_line,
    )
    from autotune.report.memory_over_step import sketch
    from autotune.report.terminal import safe
    from autotune.spec import config_label

    problem = problem_lines(answer)
    for line in problem:
        out.print(safe(line, palette), style="bold red")
    color = {"fits": "green", "at the limit": "yellow"}.get(answer.verdict, "red")
    verdict = safe(verdict_line(answer), palette)
    out.print(verdict, style="" if problem else f"bold {color}")
    if other := other_verdict_line(answer):
        out.print(safe(other, palette))
    out.print(safe(workload_line(answer.workload), palette))
    why = " (the plan's choice; --config selects another config)" if chosen_by_plan else ""
    out.print(safe(config_label(answer.config) + why, palette))
    fullest = answer.fullest
    if fullest is not None:
        out.print()
        if len(answer.runs) > 1:
            out.print(
                f"memory over the second optimizer step, {rank_names(answer)[answer.runs.index(fullest)]}"
            )
        for line in sketch(fullest.timeline, limit_bytes=answer.memory_bytes, palette=palette):
            out.print(line, markup=True)
        out.print()
        for line in (*peak_lines(answer), work_line(answer)):
            out.print(safe(line, palette))
    for rows in tables(answer):
        out.print()
        out.print(rows.title, style="bold")
        _table(out, rows, palette)
    out.print()
    for line in closing_lines(answer):
        out.print(safe(line, palette))


def _table(out: Console, rows: TextTable, palette: Palette) -> None:
    from autotune.report.terminal import plain_table, safe

    table = plain_table(palette)
    for index, head in enumerate(rows.heads):
        table.add_column(head, justify="left" if index < rows.text else "right", overflow="fold")
    for row in rows.rows:
        table.add_row(*(safe(cell, palette) for cell in row))
    out.print(table)
