"""`autotune tune`: runs a study in the foreground, with live progress."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from autotune.cli.output import JsonOption, NoCheckOption, NoProfileOption, SpecArgument, StoreOption, emit, note
from autotune.cli.quantities import tokens
from autotune.cli.stand_ins import note_stand_ins


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(tune)


def tune(
    spec: SpecArgument,
    store: StoreOption = None,
    runner: Annotated[
        str | None, typer.Option("--runner", help="Runner to use instead of the spec's: ray, local or simulated.")
    ] = None,
    searcher: Annotated[str | None, typer.Option("--searcher", help="Searcher to use instead of the spec's.")] = None,
    max_trials: Annotated[
        int | None, typer.Option("--max-trials", min=1, help="Most trials, instead of the spec's budget.")
    ] = None,
    train_tokens: Annotated[
        float | None,
        typer.Option(
            "--train-tokens",
            metavar="TOKENS",
            parser=tokens(),
            help="Tokens of the planned training, e.g. 300B or 15T. The search ends when more trials would take longer than they could save in it.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed to use instead of the spec's.")] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new study, even if the store has an unfinished one of this spec.")
    ] = False,
    no_check: NoCheckOption = False,
    no_profile: NoProfileOption = False,
    json: JsonOption = False,
) -> None:
    """Runs a study on this machine until it ends.

    Ctrl-C stops it cleanly and keeps all results. The same command then continues the study.
    """
    from autotune import api
    from autotune.cli.exit_codes import FAILED, INTERRUPTED
    from autotune.cli.live import LiveView
    from autotune.cli.study_text import print_study
    from autotune.schema import places_in, read_spec
    from autotune.spec import StudyStatus
    from autotune.store.location import find_location

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
    study = api.load_study(document if spec == "-" else spec, overrides=overrides)
    note_stand_ins(spec)
    with closing(api.open_store(store)) as database:
        with places_in(document, but=overrides), LiveView(study) as view:
            result = api.tune(
                study,
                store=database,
                on_event=view.on_event,
                resume=not new,
                spec=document,
                profile=not no_profile,
            )
        answer = api.document(result)
        if json:
            emit(answer)
        else:
            why = api.explain(database, result.record.id)["text"] if result.best else ()
            print_study(answer, [trial.to_dict() for trial in result.shown], why=why)
            note(f"stored in {find_location(store)}")
    if result.record.status is StudyStatus.PAUSED:
        note("paused; all results are stored, and the same command continues the study")
        raise typer.Exit(INTERRUPTED)
    if result.record.status is StudyStatus.FAILED or api.chosen_config(result) is None:
        raise typer.Exit(FAILED)
