"""The command `calibrate`, which measures this cluster, so that predictions use its real speed."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from autotune.cli.output import JsonOption, StoreOption, emit, note, print_table


def calibrate(
    cluster: Annotated[
        str, typer.Option("--cluster", help="Cluster to measure; `local` is this machine.")
    ] = "local",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Measure this cluster for the cost model, in about a minute.

    The command measures matmul rates, memory bandwidth and collectives for plan, estimate and tune. With several GPUs or nodes it also finds GPUs and pairs of nodes that are
    slower than the others. tune avoids slow nodes if the cluster has enough other nodes.
    """
    from autotune import api
    from autotune.store import open_to_read

    with closing(open_to_read(store)) as results:
        slow_parts: list[Any] = []
        calibration = api.calibrate(
            cluster, store=results, on_progress=note, on_out_of_line=slow_parts.append
        )
    document = calibration.to_dict()
    if json:
        emit({"calibration": document, "out_of_line": slow_parts})
        return
    for slow_part in slow_parts:
        print(
            f"{slow_part['text']}; unless this is fixed, `autotune tune` omits the node if the cluster has other nodes"
        )
    shown = {
        name: value for name, value in document.items() if isinstance(value, str | int | float)
    }
    rows = [
        [name, f"{value:.4g}" if isinstance(value, float) else str(value)]
        for name, value in shown.items()
    ]
    print_table(("constant", "value"), rows, numbers=("value",))
    note("stored; plan, estimate and tune use these values for this cluster from now on")
