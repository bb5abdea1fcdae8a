"""`autotune calibrate`: measures this cluster, so that predictions use its real speed."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.output import JsonOption, StoreOption, bare_table, consoles, emit, note


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(calibrate)


def calibrate(
    cluster: Annotated[str, typer.Option("--cluster", help="Cluster to measure; `local` is this machine.")] = "local",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Measures this cluster for the cost model, in about a minute.

    It measures matmul rates, memory bandwidth and collectives, and stores them. plan, estimate and tune then use them.
    """
    from autotune import api

    results = api.open_store(store)
    try:
        calibration = api.calibrate(cluster, store=results, on_progress=note)
    finally:
        results.close()
    document = calibration.to_dict()
    if json:
        emit({"calibration": document})
        return
    table = bare_table()
    table.add_column("constant")
    table.add_column("value", justify="right")
    for name, value in document.items():
        if isinstance(value, float):
            table.add_row(name, f"{value:.4g}")
        elif isinstance(value, str | int):
            table.add_row(name, str(value))
    consoles()[0].print(table)
    note("stored; plan, estimate and tune use these values for this cluster from now on")
