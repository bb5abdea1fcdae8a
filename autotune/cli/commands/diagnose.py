"""The diagnose command: what slows down a stored trial, an observed run, or the run in a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.output import JsonOption, StoreOption, UrlOption, emit, note
from autotune.errors import NotFoundError, SpecError

if TYPE_CHECKING:
    from autotune.cli.source import Source
    from autotune.diagnosis import Diagnosis
    from autotune.spec import Trial


def diagnose(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY|RUN|SPEC",
            help="A study (id, prefix of the id, or name) or an observed run (id). With --log: "
            "the spec or launch of the run that wrote the log.",
        ),
    ],
    trial: Annotated[
        int | None, typer.Argument(help="Number of a trial. Default: the study's best.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="A log of the run.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Find what slows a run down, with evidence, a way to confirm each cause, and what to change.

    The largest cause comes first. Trials, and runs started with `autotune run --diagnose`, record what each rank does. A log alone shows less.
    """
    from autotune.diagnosis import lines_of

    if log is not None:
        subject, found = f"the log {log.name}", _of_log(study, log, store)
    else:
        from autotune.cli.source import open_source

        with open_source(store, url) as source:
            subject, found = _of_stored(source, study, trial)
    if json:
        emit({"subject": subject, **found.to_dict()})
        return
    note(f"diagnosis of {subject}:")
    for line in lines_of(found):
        print(line)


def _of_log(spec: str, log: Path, store: str | None) -> Diagnosis:
    from autotune.cli.commands.review import _known_store, _text
    from autotune.results.diagnoses import diagnosis_of_log
    from autotune.reviews import review

    with _known_store(store, None) as database:
        found = review(spec, store=database)
    if found.study is None:
        raise SpecError(
            f"the log cannot be read, because this is missing from {spec}: {'; '.join(str(missing) for missing in found.missing)}",
            remedy="pass a study spec instead (`autotune init` drafts one)",
            field="SPEC",
        )
    return diagnosis_of_log(_text(log), found.study, found.estimate)


def _of_stored(source: Source, asked: str, number: int | None) -> tuple[str, Diagnosis]:
    from autotune.results.diagnoses import diagnosis_of_run
    from autotune.spec import ObservedRun

    runs = source.observed(limit=2, id=asked)["runs"] if number is None and len(asked) >= 4 else []
    if len(runs) == 1:
        run = ObservedRun.from_dict(runs[0])
        return f"the observed run {run.id}", diagnosis_of_run(run)
    if asked.endswith((".yaml", ".yml", ".json", ".sh", ".py")) and Path(asked).is_file():
        raise SpecError(
            f"{asked} is a file, not a study or an observed run",
            remedy=f"add the log (`autotune diagnose --log FILE {asked}`), or specify a study",
            field="STUDY",
        )
    found = _trial(source, asked, number)
    if found is None:
        raise NotFoundError(
            f"study {asked} has no measured trial"
            if number is None
            else f"study {asked} has no trial {number}",
            remedy="`autotune status` lists the study's trials",
        )
    return f"trial {found.number} ({found.config})", diagnosis_of_run(found)


def _trial(source: Source, asked: str, number: int | None) -> Trial | None:
    from autotune.cli.named_study import tell_namesakes
    from autotune.cli.source import study_with_trials

    tell_namesakes(source, asked)
    record, trials = study_with_trials(source, asked)
    if number is None:  # the trial as it was measured, not with what the finals say of its config
        best = source.result(record.id).best
        number = (
            best.number
            if best
            else next((trial.number for trial in trials if trial.measurement), None)
        )
    return next((trial for trial in trials if trial.number == number), None)
