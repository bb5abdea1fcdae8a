"""autotune's searchers as an Optuna sampler, which needs few trials because every config is
predicted first.

space   = space_of({...})              the valid configs in a study spec
sampler = AutotuneSampler(space)       maximizes tokens per second
config  = suggest_config(trial, space) the config that a trial represents
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autotune
from autotune.search.optuna_study import MemoryConstraint, suggest_config
from autotune.search.optuna_study import SearcherSampler as AutotuneSampler
from autotune.space import SearchSpace


def space_of(spec: Mapping[str, Any] | str) -> SearchSpace:
    """The valid configs in a study spec, which is a mapping or the path to a YAML file."""
    return SearchSpace.of_study(autotune.load_study(spec))


__all__ = ["AutotuneSampler", "MemoryConstraint", "space_of", "suggest_config"]
