"""The command `tune`, which runs a study in the foreground with live progress."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.exit_codes import DONE, FAILED, INTERRUPTED
from autotune.cli.output import (
    JsonOption,
    NoCheckOption,
    NoProfileOption,
    SpecArgument,
    StoreOption,
    VerboseOption,
    emit,
    note,
    note_placeholders,
    note_probe_off,
    read_study,
)
from autotune.cli.quantities import tokens


def tune(
    spec: SpecArgument,
    store: StoreOption = None,
    runner: Annotated[
        str | None,
        typer.Option(
            "--runner", help="Runner to use instead of the spec's: ray, local, slurm or simulated."
        ),
    ] = None,
    searcher: Annotated[
        str | None, typer.Option("--searcher", help="Searcher to use instead of the spec's.")
    ] = None,
    max_trials: Annotated[
        int | None,
        typer.Option(
            "--max-trials", min=1, help="Maximum number of trials, instead of the spec's budget."
        ),
    ] = None,
    train_tokens: Annotated[
        float | None,
        typer.Option(
            "--train-tokens",
            metavar="TOKENS",
            parser=tokens,
            help="Length of the planned training run in tokens, e.g. 300B or "
            "15T. The search stops when further trials would take more time than they could save.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed to use instead of the spec's.")
    ] = None,
    new: Annotated[
        bool,
        typer.Option(
            "--new",
            help="Start a new study, even if the store has an unfinished study with this spec.",
        ),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="SCHEDULER",
            help="Run the study as a scheduler's job instead: slurm (writes NAME/job.sbatch) or kubernetes (writes NAME/job.yaml, a RayJob).",
        ),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="With --on slurm: submit the job too.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="With --on: a key of `slurm` or `kubernetes` in the spec, e.g. time=4h; may be repeated.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--in",
            metavar="FOLDER",
            help="Keep results in this folder, e.g. on a shared file system. The store is copied there after every trial.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            metavar="FOLDER",
            help="Folder against which relative paths in the spec are resolved. Default: the spec's folder.",
        ),
    ] = None,
    no_check: NoCheckOption = False,
    no_profile: NoProfileOption = False,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Run a study until it ends, on this machine or on all nodes in a Slurm allocation.

    Ctrl-C stops the study cleanly and keeps all results. The same command then continues the study.
    """
    from autotune import api
    from autotune.cli.job_files import study_storage, write_job
    from autotune.cli.live import LiveView
    from autotune.cli.study_text import print_study
    from autotune.errors import SpecError
    from autotune.schema import folder_of, read_spec
    from autotune.slurm.allocation import move_to_nodes, unused_nodes
    from autotune.spec import StudyStatus
    from autotune.study.progress import LoopEvent, TrialEnded

    document = read_spec(spec)
    changes = {
        "runner": runner,
        "searcher": searcher,
        "budget.max_trials": max_trials,
        "budget.train_tokens": train_tokens,
        "seed": seed,
        "check": False if no_check else None,
    }
    overrides: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    # until the study's loop starts, ignore Slurm's time-limit signal: the loop checks the job's clock itself
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
    unused = (
        {"--new": new, "--no-profile": no_profile, "--in": folder}
        if on
        else {"--submit": submit, "--option": option}
    )
    if given := [name for name, value in unused.items() if value]:
        verb, pronoun = ("has", "it") if len(given) == 1 else ("have", "them")
        leave_out = f"omit {pronoun}; the job keeps its results in NAME/"
        raise SpecError(
            f"{' and '.join(given)} {verb} no effect {'with' if on else 'without'} --on",
            remedy=leave_out if on else "add --on slurm or --on kubernetes",
            field=given[0],
        )
    base_folder = base or folder_of(spec)
    if on is not None:
        write_job(
            document,
            on,
            overrides,
            option or (),
            base=base_folder.absolute(),
            submits=submit,
            store=store,
            json=json,
        )
        return
    move_to_nodes()
    if document.get("cluster") == "local" and (warning := unused_nodes()):
        note(f"note: {warning}")
    study, places = read_study(document, overrides, base=base_folder)
    note_placeholders(spec)
    note_probe_off(study)
    with (
        study_storage(folder, store) as storage,
        closing(api.open_store(storage.store)) as database,
    ):
        with places, LiveView(study) as view:

            def on_event(event: LoopEvent) -> None:
                view.on_event(event)
                if isinstance(event, TrialEnded):
                    storage.on_trial_end()

            result = api.tune(
                study,
                store=database,
                on_event=on_event,
                resume=not new,
                spec=document,
                profile=not no_profile,
            )
        result_document = api.document(result)
        if json:
            emit(result_document)
        else:
            why = api.explain(database, result.record.id)["text"] if result.best and verbose else ()
            print_study(
                result_document,
                [trial.to_dict() for trial in result.shown],
                why=why,
                verbose=verbose,
                folder=folder,
            )
            note(f"stored in {storage.shown}")
    is_expected = storage.pause_is_expected(result.record, document)
    if result.record.status is StudyStatus.PAUSED:
        note("paused; all results are stored, and the same command continues the study")
        raise typer.Exit(DONE if is_expected else INTERRUPTED)
    if result.record.status is StudyStatus.FAILED or api.chosen_config(result) is None:
        raise typer.Exit(FAILED)
