"""Commands that write a first spec: init (from a script, a launch script, a command or a configuration; read, or run for a few steps), import (from a trainer's current configuration)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.output import JsonOption, emit, note, note_changes, or_print
from autotune.cli.quantities import sequence_tokens
from autotune.errors import AutotuneError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.onboarding.draft import Draft
    from autotune.onboarding.launch.given_options import Said

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        callback=or_print,
        help="File for the spec. The default, -, prints the spec.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the -o file if it exists.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Catalog name, hub id, or path of the model's config.json."),
]
SequenceOption = Annotated[
    int | None,
    typer.Option(
        "--seq-len", metavar="TOKENS", parser=sequence_tokens, help="Tokens per sequence."
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="Sequences per optimizer step.")
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="bf16, fp16, tf32 or fp32.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="NAME", help="Cluster: GPU-NODESxGPUS, e.g. h100-sxm-2x8, or local."
    ),
]


def init(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | -- COMMAND",
            help="A training script, the script that launches it, a trainer's configuration file, or the command itself after --.",
            show_default=False,
        ),
    ],
    output: OutputOption = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Start the launch on this machine for a few optimizer steps, and write the observed values.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --run: start the launch without confirmation.")
    ] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a first spec from a script, a launch script, a command or a configuration file.

    A script is read, not run. Comments in the spec give the line where each value was found, and mark the values to fill in. --run starts the launch, observed by the probe, and
    writes the observed values: ranks, batch, accumulation, sequence length, precision, optimizer, sharding, recomputation and weights.
    """
    from autotune.onboarding.first_spec import command_draft, first_draft
    from autotune.slurm.allocation import unused_nodes

    if cluster in (None, "local") and (unused := unused_nodes()):
        note(f"note: {unused}" + ("; --run starts the program on this node only" if run else ""))
    folder = output.parent if output else Path()
    file = Path(target[0]) if len(target) == 1 else None

    def drafted(said: Said = ()) -> Draft:
        if file is None:
            return command_draft(target, model=model, cluster=cluster, folder=folder, said=said)
        return first_draft(file, model=model, cluster=cluster, folder=folder, said=said)

    if not run:
        _hand_over(drafted(), output, force=force, json=json)
        return
    if output and output.exists() and not force:
        raise _exists(output)  # before anything is started
    draft, seen = _watched(target, file, drafted, cluster=cluster, folder=folder, yes=yes)
    _hand_over(draft, output, force=force, json=json, seen=seen)


def _watched(
    target: list[str],
    file: Path | None,
    drafted: Callable[[Said], Draft],
    *,
    cluster: str | None,
    folder: Path,
    yes: bool,
) -> tuple[Draft, dict[str, Any]]:
    """The draft with what was observed in its launch, and the observation itself. `drafted`: the draft by what was read, and by what the program's parser said."""
    import shlex
    from contextlib import closing
    from dataclasses import replace

    from autotune.detect import local_cluster
    from autotune.interrupts import interrupts
    from autotune.onboarding.first_spec import (
        launch_of_command,
        launch_of_python,
        launch_of_script,
        lawful,
    )
    from autotune.onboarding.launch.own_outputs import with_own_outputs
    from autotune.onboarding.launch.seen_draft import seen_document, seen_draft
    from autotune.onboarding.launch.watched_launch import (
        STEPS,
        check_trained,
        ended_early,
        launch_shown,
        request_of,
        watch_launch,
    )
    from autotune.registry import make_runner
    from autotune.spec import catalog
    from autotune.study.check.verdict import OUTPUTS
    from autotune.study.program_remarks import listed

    draft = drafted(())
    here = local_cluster()
    ranks = catalog.cluster(cluster).num_gpus if cluster not in (None, "local") else here.num_gpus
    if file is None:
        launch, what = launch_of_command(target), "the command"
    elif file.suffix == ".py":
        launch, what = launch_of_python(file, draft, ranks), file.name
    else:
        launch, what = launch_of_script(file), file.name
    request = request_of(launch, here)
    shown = launch_shown(request)
    note(f"autotune will start this on this machine and stop it after {STEPS} optimizer steps:")
    note(f"  command  {shlex.join(shown.argv)}")
    note(f"  folder   {launch.cwd.resolve()}")
    for name, value in shown.env.items():
        note(f"  variable {name}={value}")
    for remark in shown.notes:
        note(f"  outputs  {remark}")
    note(
        "  files    other output is written as usual; existing files that the program changes are restored at the end"
    )
    note("  else     data, downloads and trackers such as wandb work as usual")
    _ask(yes)
    with interrupts() as interrupted, closing(make_runner("local")) as runner:
        watched = watch_launch(
            request,
            runner,
            on_line=note,
            on_wait=note_changes(),
            interrupted=lambda: bool(interrupted()),
        )
    seen = check_trained(watched)
    draft = seen_draft(
        drafted(seen.options) if seen.options else draft,
        seen,
        launched=what,
        steps=watched.steps,
        folder=folder,
    )
    if early := ended_early(watched):
        draft = replace(draft, notes=(early, *draft.notes))
    draft, elsewhere = with_own_outputs(draft, seen, folder)
    if seen.files:
        existed = {path: told for path, told in seen.files.items() if told["existed"]}
        lost = {path: told for path, told in existed.items() if not told["kept"]}
        note(f"note: the program wrote outside its own folder: {listed(seen.files)}")
        if elsewhere and draft.document.get("outputs") != "keep":
            files = {path: seen.files[path] for path in elsewhere}
            note(f"note: `tune` stops if a trial would overwrite {listed(files)}: {OUTPUTS}")
        if existed:
            note(
                f"note: these files existed before: {listed(existed)}; "
                + (f"not restored: {listed(lost)}" if lost else "they were restored")
            )
    return lawful(draft, what, folder, here), seen_document(seen, watched.steps)


def _ask(yes: bool) -> None:
    """Raises unless a person agrees."""

    if yes:
        return
    if not sys.stdin.isatty():
        raise SpecError(
            "--run starts your program, and there is no terminal to ask for confirmation",
            remedy="add --yes, or omit --run to read the launch without starting it",
            field="--run",
        )
    if not typer.confirm("Start the launch?", err=True):
        raise typer.Exit(1)


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The trainer's configuration, or a folder written by `autotune export`.",
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TRAINER",
            help="Trainer to which the configuration belongs, e.g. deepspeed or megatron.",
        ),
    ],
    output: OutputOption = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a spec from a trainer's current configuration.

    Your current settings become the study's baseline. Keys that are not knobs are kept and written to every export.
    """
    from autotune.onboarding.configuration_files import read_present
    from autotune.onboarding.imported_spec import import_draft
    from autotune.trainers import trainer

    name = trainer(source).name
    folder = output.parent if output else Path()
    draft = import_draft(
        read_present(file), name, file, model=model, cluster=cluster, folder=folder
    )
    _hand_over(draft, output, force=force, json=json)


def _hand_over(
    draft: Draft,
    output: Path | None,
    *,
    force: bool,
    json: bool,
    seen: dict[str, Any] | None = None,
) -> None:
    """Writes or prints the draft, and says what to do with it."""
    draft, problem = _checked(draft, output.parent if output else Path())
    if output:
        _write(draft, output, force=force)
    if json:
        told = {"seen": seen} if seen is not None else {}
        emit(
            {
                **draft.to_dict(),
                **told,
                "problem": problem,
                "written": str(output) if output else None,
            }
        )
    elif not output:
        print(draft.text, end="")
    for remark in draft.notes:
        note(f"note: {remark}")
    if draft.fill_in:
        note(f"fill in: {', '.join(draft.fill_in)}")
    # a stand-in would be complained of
    if problem and not {"cluster", "model"} & set(draft.fill_in):
        note(f"the spec cannot be loaded yet: {problem}")
    if output:
        step = (
            "check"
            if draft.document["trainer"] != "native" and "argv" in draft.document["trainer"]
            else "plan"
        )
        before = "correct the spec, then " if problem else ""
        before = "fill in these values, then " if draft.fill_in else before
        note(f"wrote {output}; next: {before}autotune {step} {output}")


def _checked(draft: Draft, folder: Path) -> tuple[Draft, str]:
    """The draft without values that no valid config has; and why the spec cannot be loaded or has no
    valid config, or an empty text."""
    from autotune import api
    from autotune.onboarding.valid_values import with_valid_values
    from autotune.schema.files import with_program_files

    document = draft.document
    try:
        if isinstance(document["trainer"], dict):
            document["trainer"] = with_program_files(document["trainer"], folder.absolute())
        return with_valid_values(draft, api.load_study(document, base=folder)), ""
    except AutotuneError as error:
        return draft, str(error)


def _write(draft: Draft, output: Path, *, force: bool) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(draft.text)
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise SpecError(
            f"{output} cannot be written: {error.strerror}",
            remedy="choose another file with -o",
            field="--output",
        ) from None


def _exists(output: Path) -> Exception:
    return SpecError(
        f"{output} exists",
        remedy="choose another file with -o, or replace it with --force",
        field="--output",
    )
