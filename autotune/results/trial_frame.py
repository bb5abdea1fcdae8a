"""A result's trials as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.errors import MissingExtraError
from autotune.spec import Trial
from autotune.spec.trial_row import TRIAL_COLUMNS, trial_row

if TYPE_CHECKING:
    from pandas import DataFrame


def trial_frame(trials: Sequence[Trial]) -> DataFrame:
    """One row for each trial, indexed by its number; the columns are those of `autotune store export`. Raises `MissingExtraError` without pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a data frame needs pandas, which is not installed", remedy="install it with: pip install pandas"
        ) from error
    frame = pandas.DataFrame([trial_row(trial) for trial in trials], columns=list(TRIAL_COLUMNS))
    for name in ("created_at", "started_at", "ended_at"):
        frame[name] = pandas.to_datetime(frame[name], utc=True, format="ISO8601")
    return frame.set_index("number")
