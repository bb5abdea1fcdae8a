"""The published measurements as workloads, configs and measured values, to fit the cost model and
to replay searchers.

The files in `tests/benchmarks/data` hold facts from public sources, with the source in each row; a
module of this package reads one.

rows.py         a published run; runs of one model, sequence length, cluster and software as a block
nanotron.py  vtrain.py  vtrain_multi.py  mosaic.py  internevo.py  nemo.py  megatron_published.py  alpa.py  bigscience.py  bridge.py  simumax.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.benchmarks.published.alpa import alpa, alpa_deepspeed
from tests.benchmarks.published.bigscience import bigscience
from tests.benchmarks.published.bridge import bridge
from tests.benchmarks.published.internevo import internevo, internevo_memory
from tests.benchmarks.published.megatron_published import megatron_published
from tests.benchmarks.published.mosaic import mosaic
from tests.benchmarks.published.nanotron import nanotron
from tests.benchmarks.published.nemo import nemo
from tests.benchmarks.published.rows import Block, Run, blocks_of, read
from tests.benchmarks.published.simumax import simumax
from tests.benchmarks.published.vtrain import vtrain
from tests.benchmarks.published.vtrain_multi import vtrain_multi

FILES: Mapping[str, Callable[[], list[Block]]] = {
    "nanotron": nanotron,
    "vtrain": vtrain,
    "vtrain_multi": vtrain_multi,
    "mosaic": mosaic,
    "nemo": nemo,
    "megatron_published": megatron_published,
    "internevo": internevo,
    "internevo_memory": internevo_memory,
    "alpa": alpa,
    "alpa_deepspeed": alpa_deepspeed,
    "bigscience": bigscience,
    "bridge": bridge,
    "simumax": simumax,
}
"""the reader of each data set, by the name that tables show"""

__all__ = [
    "FILES",
    "Block",
    "Run",
    "alpa",
    "alpa_deepspeed",
    "bigscience",
    "blocks_of",
    "bridge",
    "internevo",
    "internevo_memory",
    "megatron_published",
    "mosaic",
    "nanotron",
    "nemo",
    "read",
    "simumax",
    "vtrain",
    "vtrain_multi",
]
