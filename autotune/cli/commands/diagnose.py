"""The command `diagnose`, which finds what slows down a stored trial, an observed run, or the run
in a log."""

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
        subject, diagnosis = f"the log {log.name}", _diagnose_log(study, log, store)
    else:
        from autotune.cli.source import open_source

        with open_source(store, url) as source:
            subject, diagnosis = _diagnose_stored(source, study, trial)
    if json:
        emit({"subject": subject, **diagnosis.to_dict()})
        return
    note(f"diagnosis of {subject}:")
    for line in lines_of(diagnosis):
        print(line)


def _diagnose_log(spec: str, log: Path, store: str | None) -> Diagnosis:
    """Return the diagnosis of the run in a log; `spec`: the spec or launch of that run."""
    from autotune.cli.commands.review import known_store, read_text
    from autotune.results.diagnoses import diagnosis_of_log
    from autotune.reviews import review

    with known_store(store, None) as database:
        reviewed = review(spec, store=database)
    if reviewed.study is None:
        raise SpecError(
            f"the log cannot be read, because this is missing from {spec}: {'; '.join(str(missing) for missing in reviewed.missing)}",
            remedy="pass a study spec instead (`autotune init` drafts one)",
            field="SPEC",
        )
    return diagnosis_of_log(read_text(log), reviewed.study, reviewed.estimate)


def _diagnose_stored(source: Source, name: str, number: int | None) -> tuple[str, Diagnosis]:
    """Return the name and the diagnosis of an observed run, or of a study's trial."""
    from autotune.results.diagnoses import diagnosis_of_run
    from autotune.spec import ObservedRun

    runs = source.observed(limit=2, id=name)["runs"] if number is None and len(name) >= 4 else []
    if len(runs) == 1:
        run = ObservedRun.from_dict(runs[0])
        return f"the observed run {run.id}", diagnosis_of_run(run)
    if name.endswith((".yaml", ".yml", ".json", ".sh", ".py")) and Path(name).is_file():
        raise SpecError(
            f"{name} is a file, not a study or an observed run",
            remedy=f"add the log (`autotune diagnose --log FILE {name}`), or specify a study",
            field="STUDY",
        )
    measured = _find_trial(source, name, number)
    if measured is None:
        raise NotFoundError(
            f"study {name} has no measured trial"
            if number is None
            else f"study {name} has no trial {number}",
            remedy="`autotune status` lists the study's trials",
        )
    return f"trial {measured.number} ({measured.config})", diagnosis_of_run(measured)


def _find_trial(source: Source, name: str, number: int | None) -> Trial | None:
    """Return a study's trial as it was measured, without later final runs; None if there is none.
    `number`: default, the best trial."""
    from autotune.cli.named_study import note_namesakes
    from autotune.cli.source import study_with_trials

    note_namesakes(source, name)
    record, trials = study_with_trials(source, name)
    if number is None:
        best = source.result(record.id).best
        number = (
            best.number
            if best
            else next((trial.number for trial in trials if trial.measurement), None)
        )
    return next((trial for trial in trials if trial.number == number), None)
