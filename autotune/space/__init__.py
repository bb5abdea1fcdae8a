"""Which configs exist: knobs and laws in, every legal config out, as columns.

    constraint.py    LAWS: each a vectorized check with a reason        enumeration.py   the product of the knobs, cut by the laws
    space.py         SearchSpace: the list that searchers choose from    baseline.py      the config that nobody tuned
    launchable.py    what a study's trainer can launch     completion.py    a config as people write it, with dp and accumulation derived

The feasible set is enumerated: a searcher scores a list, so no suggestion is ever illegal. Whether a config fits into memory is not a law but
an estimate (`autotune.cost`).
"""

from autotune.space.baseline import default_config
from autotune.space.completion import complete
from autotune.space.constraint import LAWS, Law, legal, reasons, why_not
from autotune.space.enumeration import MAX_CONFIGS
from autotune.space.launchable import Launchable
from autotune.space.space import SearchSpace, why_outside

__all__ = [
    "LAWS",
    "MAX_CONFIGS",
    "Launchable",
    "Law",
    "SearchSpace",
    "complete",
    "default_config",
    "legal",
    "reasons",
    "why_not",
    "why_outside",
]
