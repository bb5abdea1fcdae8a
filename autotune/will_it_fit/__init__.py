"""Will it fit? One rank of each kind is run dry, and its peak is held against the memory of a GPU.

    reserved.py    what the allocator takes from the GPU for the tensors of a rank
    answer.py      the answer for one config: verdict, memory, risk, and the dry runs behind it
    choice.py      which configs are asked about
    dry_runs.py    which ranks are run, and the cost model's answer where none can be
    findings.py    what people ask of the dry runs: categories, modules, matmuls, traffic, work per token
    document.py    the answer as a JSON document

A dry run says what is *allocated*: exact for the code that runs. What a GPU's allocator *reserves* beyond that is a factor with an interval. The two
are never added up silently.
"""

from autotune.will_it_fit.answer import AT_THE_LIMIT, DOES_NOT_FIT, FITS, PLAYED, Fit, Verdict
from autotune.will_it_fit.choice import configs_of
from autotune.will_it_fit.document import fit_document, fits_document
from autotune.will_it_fit.dry_runs import OnRank, RankProgress, answers, pipeline_ranks

__all__ = [
    "AT_THE_LIMIT",
    "DOES_NOT_FIT",
    "FITS",
    "PLAYED",
    "Fit",
    "OnRank",
    "RankProgress",
    "Verdict",
    "answers",
    "configs_of",
    "fit_document",
    "fits_document",
    "pipeline_ranks",
]
