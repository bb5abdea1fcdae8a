"""The command `run`, which runs a command in place, with a review before and measurements after,
and the table of observed runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from autotune.cli.commands.onboarding import (
    BatchOption,
    ModelOption,
    PrecisionOption,
    SequenceOption,
)
from autotune.cli.output import JsonOption, StoreOption, note, print_table


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND ...",
            help="The command that starts your training, as you would type it.",
        ),
    ],
    model: ModelOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="GPU-NODESxGPUS. Default: this machine, with the command's number of ranks.",
        ),
    ] = None,
    seq_len: SequenceOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="KNOB=VALUE,...",
            help="Current config, if the command does not contain it.",
        ),
    ] = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Observe what every rank does, and report at the end what slows the run down. On several nodes, use it on every node.",
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Like --diagnose, and also profile two steps (after step 8) on every rank with torch's profiler. The profile shows what the GPU does and which kernels take longest. The two profiled steps are slower.",
        ),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Review a command, run it unchanged, and store the measurements.

    Output, signals, stdin, environment and exit code are the command's own. autotune prints only to stderr, and only from the first process of a job.
    """
    from autotune.observing.in_place import exec_in_place, run_in_place
    from autotune.observing.rank import is_first
    from autotune.observing.watched import NOWHERE, probe_off, variables_of
    from autotune.temporary_folders import TemporaryFolder

    diagnose = diagnose or profile
    if not is_first(os.environ, command):
        exec_in_place(
            command, variables_of(os.environ, NOWHERE, profile=profile) if diagnose else None
        )
    if diagnose and (reason := probe_off(os.environ)):
        note(f"autotune: {reason}")
    reports = str(TemporaryFolder("diagnose").path) if diagnose else ""

    def advise(channel: object) -> None:
        from autotune.cli.fast_start import fast_start

        with (
            fast_start()
        ):  # this process is long-lived, but its imports should load as fast as a short command's
            from autotune.observing.adviser import Asked, adviser_of

        options = {
            "model": model,
            "cluster": cluster,
            "seq_len": seq_len,
            "batch": batch,
            "precision": precision,
            "config": config,
        }
        adviser_of(
            Asked(
                command=tuple(command),
                said=options,
                store=store,
                as_json=json,
                reports=reports,
                profiles=profile,
            )
        )(channel)

    variables = variables_of(os.environ, reports, profile=profile) if diagnose else None
    run_in_place(command, advise, to_stderr=json, variables=variables)


def print_runs(runs: Sequence[Mapping[str, Any]], *, is_filtered: bool) -> None:
    """Print a table of observed runs. `is_filtered`: whether filters may have hidden other runs."""
    from autotune.spec import ObservedRun, config_label
    from autotune.spec.texts.as_text import bytes_cell, count_cell, duration_cell

    if not runs:
        note(
            "no observed runs match; omit the filters to see all"
            if is_filtered
            else "no observed runs; start your training with `autotune run -- COMMAND`"
        )
        return
    rows = []
    for run in map(ObservedRun.from_dict, runs):
        measured = run.measurement
        speed = (
            count_cell(measured.median_tokens_per_s)
            if measured and measured.step_times_s and measured.tokens_per_step
            else ""
        )
        peak = (
            bytes_cell(measured.peak_memory_bytes)
            if measured and measured.peak_memory_bytes
            else ""
        )
        workload = (
            f"{run.workload.model.name} on {run.workload.cluster.name}" if run.workload else ""
        )
        step = duration_cell(run.step_time_s) if run.step_time_s else ""
        ended = run.failure.kind.words if run.failure else run.outcome.lower()
        label = config_label(run.config) if run.config else ""
        began = run.started_at.isoformat()[:19].replace("T", " ")
        rows.append([run.id, run.program, workload, label, step, speed, peak, ended, began])
    numbers = ("step", "tokens/s", "memory")
    print_table(
        ("id", "program", "workload", "config", *numbers, "ended", "started"), rows, numbers=numbers
    )
