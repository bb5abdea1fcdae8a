"""The command `check`, which shows whether a study's program can be tuned: its launch, five real
steps, and what autotune understands of its log."""

from __future__ import annotations

import sys
from contextlib import closing
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
    note_changes,
    note_placeholders,
    note_probe_off,
    read_study,
)
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.study.check.prepared import PreparedCheck
    from autotune.study.check.program_check import LogLine, ProgramCheck
    from autotune.study.check.verdict import Verdict

MAX_LINES = 100
"""maximum number of log lines to print of those without recognized values"""
COLUMN = 34
"""width of the column with the recognized values, characters"""
_AGREEMENT = {True: "", False: "differs", None: "unknown"}
"""last cell of a row, by whether spec and observation agree"""


def check(
    spec: SpecArgument,
    store: StoreOption = None,
    runner: Annotated[
        str | None,
        typer.Option("--runner", help="Runner to use instead of the spec's: ray or local."),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Write observed values into the spec where they differ from it."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Try a spec before tuning, with five real training steps for each of two configs.

    The first config is the baseline. The output compares the spec with the observed values, and shows the launch and the log lines that autotune understands. If the log has no
    recognizable steps, patterns are proposed.
    """
    from autotune import api
    from autotune.results.masking import secrets_note
    from autotune.store import open_to_read

    study, places = read_study(spec, {"runner": runner} if runner else None)
    note_placeholders(spec)
    note_probe_off(study)
    if secrets := secrets_note(study):
        note(secrets)
    with closing(open_to_read(store)) as database:
        log_view = _LogView()
        with places:
            prepared = api.prepare_check(study, store=database)
        if not json:
            _print_launch(prepared)
        result = api.run_check(
            prepared, on_line=(lambda _: None) if json else log_view.show, on_wait=note_changes()
        )
    verdict = api.check_verdict(result)
    if json:
        emit(api.check_document(prepared, result))
    else:
        log_view.end()
        _print_comparison(result)
        _print_verdict(result.proposal, verdict)
    if fix:
        _fix(spec, result)
    if not verdict.ready:
        raise typer.Exit(FAILED)


class _LogView:
    """Prints the log as it arrives: recognized values on the left, the line on the right."""

    def __init__(self) -> None:
        self._shown = self._num_hidden = 0

    def show(self, line: LogLine) -> None:
        """Print a line of the log."""
        if not self._shown:
            print(f"\n{'understood':{COLUMN}} log")
        if not line.text.strip():
            return
        if not line.metrics and self._shown >= MAX_LINES:
            self._num_hidden += 1
            return
        self._shown += 1
        node = f"[node {line.node}] " if line.node else ""
        text = "".join(sign if sign.isprintable() else " " for sign in line.text)
        print(f"{_metrics_text(line):{COLUMN}} {node}{text}", flush=True)

    def end(self) -> None:
        """Print how many lines were hidden."""
        if self._num_hidden:
            print(f"{'':{COLUMN}} ({self._num_hidden:,} more lines that were not understood)")


def _metrics_text(line: LogLine) -> str:
    from autotune.report.terminal import format_bytes, format_duration
    from autotune.spec.texts.as_text import UNKNOWN

    words = []
    for name, value in line.metrics.items():
        if name == "step_time_s":
            words.append(format_duration(value))
        elif name == "peak_memory_bytes":
            words.append(format_bytes(value))
        elif isinstance(value, bool):
            words.append({"ends_step": "a step"}.get(name, name))
        else:
            words.append(f"{name} {value:.6g}")
    return ", ".join(words) or UNKNOWN


def _space_text(prepared: PreparedCheck) -> str:
    """Return the number of valid configs; if there is only one, also why, because it cannot be
    compared with others."""
    from autotune.space.enumeration import in_words

    excluded = prepared.assembly.space.excluded
    if prepared.legal > 1 or not excluded:
        return f"{prepared.legal:,} valid config{'s' * (prepared.legal != 1)}"
    reasons = "; ".join(f"{reason} ({count:,})" for reason, count in in_words(excluded).items())
    return f"1 valid config, so there is nothing to compare it with; excluded: {reasons}"


def _print_launch(prepared: PreparedCheck) -> None:
    from autotune.spec import config_label
    from autotune.trainers.command.overrides import values_in

    study, launch = (
        prepared.study,
        prepared.launch.shown if prepared.launch is not None else None,
    )
    rows: list[tuple[str, str]] = [
        (
            "study",
            f"{study.name}: {study.workload.model.name} on {study.workload.cluster.name}, trainer {study.trainer}, runner {study.runner}",
        ),
        ("space", _space_text(prepared)),
        ("config", f"{config_label(prepared.config)} ({prepared.why_config})"),
    ]
    if launch is None:
        rows.append(("command", "none; the runner's own ranks train the model"))
    else:
        rows.append(("command", launch.command))
        rows.append(("folder", prepared.folder))
        rows.append(("program", prepared.program or f"{launch.argv[0]} is not on this machine"))
        rows += [("Python", prepared.python)] if prepared.python else []
        rows += [("variable", f"{name}={value}") for name, value in launch.env.items()]
        rows += [("note", text) for text in launch.notes]
    out, _ = consoles()
    for name, text in rows:
        out.print(f"{name:9} {text}", soft_wrap=True)
    for name, text in launch.files.items() if launch is not None else ():
        overrides = values_in(text)
        out.print(
            f"file      {name}" + (", which starts the program with" if overrides else ""),
            soft_wrap=True,
        )
        for line in [
            f"{place} = {value!r}" for place, value in overrides.items()
        ] or text.splitlines():
            out.print(f"          {line}", soft_wrap=True)
    sys.stdout.flush()


def _print_comparison(result: ProgramCheck) -> None:
    """Print the spec's values next to the observed values, for each config that ran."""
    from autotune.spec import config_label

    runs = [run for run in (result, result.second) if run is not None and run.rows]
    for run in runs:
        print(f"\n{config_label(run.config)}\n  {'':20} {'said':28} {'seen':40}")
        for row in run.rows:
            print(
                f"  {row.name:20} {row.said:28} {row.seen or '-':40} {_AGREEMENT[row.agrees]}".rstrip()
            )
    if result.seen is not None and not runs and result.step_times_s:
        why = f" ({result.seen.troubles[0]})" if result.seen.troubles else ""
        print(f"\nthe probe observed no torch optimizer step{why}, so the log is used")


def _fix(spec: str, result: ProgramCheck) -> None:
    """Write observed values into the spec where possible, and print a note for the others."""
    from pathlib import Path

    from autotune import api
    from autotune.study.check.mended_spec import fixes_of, mended

    file = Path(spec)
    for key, value in fixes_of(result.rows).items():
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        after = mended(before, key, value)
        if after is None:
            note(f"add `{key}: {value}` to {spec} yourself; it cannot be inserted automatically")
            continue
        file.write_text(after, encoding="utf-8")
        try:
            api.load_study(spec)
        except AutotuneError as error:
            file.write_text(before, encoding="utf-8")
            note(
                f"`{key}: {value}` was not written to the spec, because loading then fails: {error}"
            )
        else:
            note(f"{spec} now has `{key}: {value}`; run the check again")


def _print_verdict(proposal: Any, verdict: Verdict) -> None:
    from autotune.study.check.verdict import quoted

    if proposal:
        print("\nthese patterns can read the lines above; add them to the spec under `trainer`:\n")
        print("  metrics:")
        for name, pattern in proposal.items():
            print(f"    {name}: {quoted(pattern)}")
    print(f"\n{verdict}" if verdict.ready else f"\nnot ready: {verdict}")
