"""Enumerates the valid configs of a space, as columns, from its knobs and the rules.

    law.py           Law: a vectorized rule with a reason              mesh_laws.py, step_laws.py, rl_laws.py   the rules
    constraint.py    LAWS, and which configs satisfy them              enumeration.py   the product of the knobs without invalid configs
    space.py         SearchSpace: the list that searchers choose from  baseline.py      the default config that a study starts from
    launchable.py    configs that a study's trainer can launch         completion.py    derives knobs that a written config leaves out
    proxy.py         a training on few GPUs that represents one on many, and the model of one pipeline stage

All valid configs are enumerated and searchers choose from this list, so no suggestion is ever
invalid. Whether a config fits in memory is not a rule but an estimate (`autotune.cost`).
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
