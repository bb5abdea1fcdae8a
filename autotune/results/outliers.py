"""GPUs, nodes and links that a calibration found slower than their likes, kept by type of GPU until their nodes are measured again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.ports import CalibrationStore

KEPT_AS = "out_of_line"
"""in the place of a trainer's name: hardware is slow whoever trains on it"""


def keep_outliers(store: CalibrationStore, gpu: str, measured: Mapping[str, Any]) -> None:
    """Keeps what a calibration says of nodes with this type of GPU; what was known of other nodes stays."""
    again = set(measured.get("nodes", ()))
    if again:
        rest = [entry for entry in known_outliers(store, gpu) if entry["node"] not in again]
        found = [{**entry, "date": measured.get("date", "")} for entry in measured.get("out_of_line", ())]
        store.save_calibration(gpu, KEPT_AS, {"found": [*rest, *found]})


def known_outliers(store: CalibrationStore | None, gpu: str) -> list[Mapping[str, Any]]:
    """`OutOfLine` as plain values, each with the `date` of its calibration."""
    kept = store.calibration(gpu, KEPT_AS) if store is not None else None
    return list(kept["found"]) if kept else []
