"""The command line. Each module has the commands for one purpose, and imports what they need only
when they run.

    commands/      tune.py         tune                        best.py         best, explain
                   review.py       review                      observe.py      run
                   plan.py         plan, estimate              export.py       export, report, compare
                   fit.py          fit                         check.py        check
                   calibrate.py    calibrate                   serve.py        serve, token create, list, revoke, audit, mcp
                   jobs.py         submit, list, status, watch, logs, pause, resume, stop, cancel
                   catalogs.py     knobs, searchers, models, clusters, spaces, trainers, runners
                   annotate.py     note, tag, delete           store.py        store check, backup, restore, migrate, ...
                   doctor.py       doctor                      onboarding.py   init, import
                   recheck.py      recheck                     diagnose.py     diagnose
    fast_start.py  commands whose time is mostly startup
    help_pages.py  commands in groups, examples                quantities.py   options with units
    output.py      the options that commands share; JSON documents, tables and errors
    live.py        the live view of a running study            study_text.py   a study as text
    source.py      the store or the service that a command reads from
    named_study.py which study a name means                    job_files.py    a study as a job, and its folder
    exit_codes.py

Results go to stdout (one JSON document with --json), everything else to stderr.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autotune.cli.fast_start import SHORT_COMMANDS, fast_start

if TYPE_CHECKING:
    import typer


MODULES: Mapping[str, tuple[str, ...]] = {
    "review": ("review",),
    "observe": ("run",),
    "diagnose": ("diagnose",),
    "recheck": ("recheck",),
    "onboarding": ("init", "import"),
    "check": ("check",),
    "tune": ("tune",),
    "plan": ("plan", "estimate"),
    "fit": ("fit",),
    "calibrate": ("calibrate",),
    "jobs": ("submit", "status", "watch", "logs", "pause", "resume", "stop", "cancel", "list"),
    "annotate": ("note", "tag", "delete"),
    "best": ("best", "explain"),
    "export": ("export", "report", "compare"),
    "serve": ("serve", "token", "mcp"),
    "store": ("store",),
    "catalogs": ("knobs", "searchers", "models", "clusters", "spaces", "trainers", "runners"),
    "doctor": ("doctor",),
}
"""modules of `commands`, with the commands of each; a function has a trailing `_` if Python already
uses the command's name"""
SUBCOMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "token": (
        "Create, list and revoke access tokens for the service.",
        ("create", "list", "revoke", "audit"),
    ),
    "store": (
        "Check, back up, restore, upgrade, export and compact the results database.",
        ("check", "backup", "restore", "migrate", "export", "vacuum"),
    ),
}
"""commands with subcommands: (help, names of the subcommands)"""
CONTEXT_SETTINGS: Mapping[str, dict[str, Any]] = {
    "run": {"ignore_unknown_options": True, "allow_interspersed_args": False}
}
"""click settings of commands whose arguments include another program's command line"""
SUMMARY = """Find the fastest stable configuration to train a model on a cluster, in about ten short real trials.

Start with `autotune init train.py -o SPEC` (writes a spec for your script), then run `autotune plan SPEC` (needs no hardware), `autotune check SPEC` (trains for five steps) and `autotune tune SPEC`. `autotune doctor` checks the machine."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; the entry point. Errors of the user are printed
    without a traceback."""
    if sys.platform == "win32":
        sys.exit("error: autotune needs Linux or macOS, and this is Windows; run autotune in WSL 2")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # logs of programs may contain lone surrogates
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    if argv[:1] == ["run"] and "--" in argv:
        separator = argv.index("--")
        _exec_or_continue(argv[separator + 1 :], argv[1:separator])
    with fast_start() if argv[:1] and argv[0] in SHORT_COMMANDS else nullcontext():
        return _run(argv)


def _run(argv: list[str]) -> int:
    import typer

    from autotune.cli.exit_codes import DONE, INTERRUPTED
    from autotune.cli.output import report_error
    from autotune.errors import AutotuneError

    as_json = "--json" in argv
    try:
        command = typer.main.get_command(application(argv[0] if argv else ""))
        code = command.main(args=argv, prog_name="autotune", standalone_mode=False)
        sys.stdout.flush()
    except AutotuneError as error:
        return report_error(error, as_json=as_json)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of stdout has exited (`autotune list | head`), so click and rich end the
        # program; redirect stdout so that the exit prints no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except (MemoryError, ImportError, OSError) as error:
        if not isinstance(error, MemoryError) and "Cannot allocate memory" not in str(error):
            raise
        exhausted = AutotuneError(
            "autotune ran out of memory; all measurements so far are stored",
            remedy="raise the memory limit (the container's, or `ulimit -v`), then repeat the "
            "command; the study continues",
        )
        return report_error(exhausted, as_json=as_json)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's errors about the command line
            return report_error(error, as_json=as_json)
        raise
    return code if isinstance(code, int) else DONE


def _exec_or_continue(command: list[str], options: list[str]) -> None:
    """Replace this process with the command if another process of the job prints, because a job may
    have thousands of processes. Each process also reports rank variables that no launcher set."""
    from autotune.observing.in_place import exec_in_place
    from autotune.observing.rank import is_first, leftover

    if warning := leftover(os.environ, command):
        print(f"autotune: {warning}", file=sys.stderr, flush=True)
    if command and not is_first(os.environ, command):
        from autotune.observing.watched import NOWHERE, variables_of

        profile = "--profile" in options
        is_watched = profile or "--diagnose" in options
        exec_in_place(
            command, variables_of(os.environ, NOWHERE, profile=profile) if is_watched else None
        )


def application(word: str = "") -> typer.Typer:
    """Return the typer application with all commands, or only with the module that has the command
    `word`, because building all commands takes longer than many commands run."""
    import typer

    from autotune.cli.help_pages import GroupedCommands, add_examples

    def show_version(is_set: bool) -> None:
        if is_set:
            from autotune import __version__

            print(f"autotune {__version__}")
            raise typer.Exit

    app = typer.Typer(
        name="autotune",
        cls=GroupedCommands,
        help=SUMMARY,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(help=SUMMARY)
    def options(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version."
        ),
    ) -> None:
        """Options before the command."""

    only = [name for name, commands in MODULES.items() if word in commands]
    for name in only or MODULES:
        _add(app, import_module(f"autotune.cli.commands.{name}"), MODULES[name])
    add_examples(app)
    return app


def _add(app: typer.Typer, module: ModuleType, names: Sequence[str]) -> None:
    """Add the module's commands with these names to the application."""
    import typer

    from autotune.cli.help_pages import GroupedCommands

    for name in names:
        if name in SUBCOMMANDS:
            text, parts = SUBCOMMANDS[name]
            group = typer.Typer(
                cls=GroupedCommands, help=text, no_args_is_help=True, rich_markup_mode=None
            )
            _add(group, module, parts)
            app.add_typer(group, name=name)
        else:
            command = getattr(module, name, None) or getattr(module, f"{name}_")
            app.command(name, context_settings=CONTEXT_SETTINGS.get(name))(command)
