"""The feasible set of a study with what the cost model says of each config.

    N    configs of the space, at most `LISTED`; of more, an even sample

Step times are at the level that the study's own trials showed (`Estimate.level` of the latest trial).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost import estimate
from autotune.errors import AutotuneError
from autotune.planning import fits
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, Study, Trial

LISTED = 50_000
"""configs that are predicted; a map of more looks the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpace:
    """Legal configs as columns, with predictions of shape (N,)."""

    table: ConfigTable
    tokens_per_s: NDArray[np.float64]
    """of the whole job"""
    fits: NDArray[np.bool_]
    """whether it is expected to fit into memory"""
    total: int
    """configs of the space, also where only a sample of them is here"""

    @property
    def optimum_tokens_per_s(self) -> float | None:
        """The most that is predicted for a config that fits."""
        return float(self.tokens_per_s[self.fits].max()) if self.fits.any() else None


def predicted_space(study: Study, trials: Sequence[Trial]) -> PredictedSpace | None:
    """The space of a study, predicted by the constants that ship; None where it can't be listed here."""
    try:
        space = SearchSpace.of_study(study)
        each = -(-len(space) // LISTED)
        table = space.table if each == 1 else space.table.take(np.arange(0, len(space), each))
        found = estimate(study.workload, table)
    except AutotuneError:
        return None
    level = next((float(t.estimate.level) for t in reversed(trials) if t.estimate is not None), 1.0)
    return PredictedSpace(
        table=table,
        tokens_per_s=np.asarray(found.tokens_per_s, dtype=float) / level,
        fits=fits(found),
        total=len(space),
    )
