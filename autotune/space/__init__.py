"""Which configs exist: knobs and laws in, every legal config out, as columns.

    law.py           Law: a vectorized check with a reason              mesh_laws.py, step_laws.py   the laws
    constraint.py    LAWS, and which configs obey them                  enumeration.py   the product of the knobs, cut by the laws
    space.py         SearchSpace: the list that searchers choose from    baseline.py      the config that nobody tuned
    launchable.py    what a study's trainer can launch     completion.py    a config as people write it, with dp and accumulation derived
    proxy.py         a training on few GPUs that stands for one on many, and the model of one pipeline stage

The feasible set is enumerated: a searcher scores a list, so no suggestion is ever illegal. Whether
a config fits into memory is not a law but an estimate (`autotune.cost`).
"""

from autotune.space.baseline import default_config, distance_from_plain
from autotune.space.completion import complete
from autotune.space.constraint import LAWS, legal, reasons, why_not
from autotune.space.enumeration import MAX_CONFIGS
from autotune.space.launchable import Launchable, why_not_in
from autotune.space.law import Law
from autotune.space.proxy import Proxy, proxy_of
from autotune.space.space import SearchSpace, why_outside

__all__ = [
    "LAWS",
    "MAX_CONFIGS",
    "Launchable",
    "Law",
    "Proxy",
    "SearchSpace",
    "complete",
    "default_config",
    "distance_from_plain",
    "legal",
    "proxy_of",
    "reasons",
    "why_not",
    "why_not_in",
    "why_outside",
]
