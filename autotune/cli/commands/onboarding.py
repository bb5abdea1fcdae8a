"""The commands that write a first spec: `init`, from a script, a launch script, a command or a
configuration, and `import`, from a trainer's current configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.output import JsonOption, dash_as_stdout, emit, note, note_changes
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
        callback=dash_as_stdout,
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
            help="Run the launch on this machine for a few optimizer steps, and write the values that were observed.",
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

    def make_draft(parser_options: Said = ()) -> Draft:
        if file is None:
            return command_draft(
                target, model=model, cluster=cluster, folder=folder, said=parser_options
            )
        return first_draft(file, model=model, cluster=cluster, folder=folder, said=parser_options)

    if not run:
        _output_draft(make_draft(), output, force=force, json=json)
        return
    if output and output.exists() and not force:
        raise _exists_error(output)  # before anything is started
    draft, observation = _draft_from_run(
        target, file, make_draft, cluster=cluster, folder=folder, yes=yes
    )
    _output_draft(draft, output, force=force, json=json, observation=observation)


def _draft_from_run(
    target: list[str],
    file: Path | None,
    make_draft: Callable[[Said], Draft],
    *,
    cluster: str | None,
    folder: Path,
    yes: bool,
) -> tuple[Draft, dict[str, Any]]:
    """Run the launch for a few steps; return the draft with the observed values, and the
    observation as a document. `make_draft`: makes the draft from the files and from the options
    that the program's parser reported."""
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

    draft = make_draft(())
    here = local_cluster()
    ranks = catalog.cluster(cluster).num_gpus if cluster not in (None, "local") else here.num_gpus
    if file is None:
        launch, launch_name = launch_of_command(target), "the command"
    elif file.suffix == ".py":
        launch, launch_name = launch_of_python(file, draft, ranks), file.name
    else:
        launch, launch_name = launch_of_script(file), file.name
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
    _confirm_launch(yes)
    with interrupts() as interrupted, closing(make_runner("local")) as runner:
        watched = watch_launch(
            request,
            runner,
            on_line=note,
            on_wait=note_changes(),
            interrupted=lambda: bool(interrupted()),
        )
    observation = check_trained(watched)
    draft = seen_draft(
        make_draft(observation.options) if observation.options else draft,
        observation,
        launched=launch_name,
        steps=watched.steps,
        folder=folder,
    )
    if early := ended_early(watched):
        draft = replace(draft, notes=(early, *draft.notes))
    draft, elsewhere = with_own_outputs(draft, observation, folder)
    if observation.files:
        existed = {
            path: details for path, details in observation.files.items() if details["existed"]
        }
        lost = {path: details for path, details in existed.items() if not details["kept"]}
        note(f"note: the program wrote outside its own folder: {listed(observation.files)}")
        if elsewhere and draft.document.get("outputs") != "keep":
            files = {path: observation.files[path] for path in elsewhere}
            note(f"note: `tune` stops if a trial would overwrite {listed(files)}: {OUTPUTS}")
        if existed:
            note(
                f"note: these files existed before: {listed(existed)}; "
                + (f"not restored: {listed(lost)}" if lost else "they were restored")
            )
    return lawful(draft, launch_name, folder, here), seen_document(observation, watched.steps)


def _confirm_launch(yes: bool) -> None:
    """Ask for confirmation to start the launch. Raises `SpecError` without a terminal, and
    `typer.Exit` if the answer is no."""

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
    _output_draft(draft, output, force=force, json=json)


def _output_draft(
    draft: Draft,
    output: Path | None,
    *,
    force: bool,
    json: bool,
    observation: dict[str, Any] | None = None,
) -> None:
    """Write or print the draft, then print its notes and the next command."""
    draft, problem = _valid_draft(draft, output.parent if output else Path())
    if output:
        _write(draft, output, force=force)
    if json:
        observed = {"seen": observation} if observation is not None else {}
        emit(
            {
                **draft.to_dict(),
                **observed,
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
    # placeholders make the spec invalid; the line above already lists them
    if problem and not {"cluster", "model"} & set(draft.fill_in):
        note(f"the spec cannot be loaded yet: {problem}")
    if output:
        step = (
            "check"
            if draft.document["trainer"] != "native" and "argv" in draft.document["trainer"]
            else "plan"
        )
        first = "correct the spec, then " if problem else ""
        first = "fill in these values, then " if draft.fill_in else first
        note(f"wrote {output}; next: {first}autotune {step} {output}")


def _valid_draft(draft: Draft, folder: Path) -> tuple[Draft, str]:
    """Return the draft without values that no valid config has, and the reason why the spec cannot
    be loaded or has no valid config (empty if it can)."""
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
        raise _exists_error(output) from None
    except OSError as error:
        raise SpecError(
            f"{output} cannot be written: {error.strerror}",
            remedy="choose another file with -o",
            field="--output",
        ) from None


def _exists_error(output: Path) -> Exception:
    return SpecError(
        f"{output} exists",
        remedy="choose another file with -o, or replace it with --force",
        field="--output",
    )
