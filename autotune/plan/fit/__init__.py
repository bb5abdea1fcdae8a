"""Will it fit? One rank of each kind is dry-run, and its peak is compared with the memory of a GPU.

    answer.py      the answer for one config: verdict, memory, risk, and the dry runs behind it; what the allocator reserves
    dry_runs.py    which configs are checked, which ranks are dry-run, and the cost model's answer if none can be
    findings.py    summaries of the dry runs: categories, modules, matmuls, traffic, FLOPs per token
    document.py    the answer as a JSON document

A dry run gives the *allocated* memory, exactly for the code that runs. What a GPU's allocator
*reserves* beyond that is a factor with an interval. The two are always shown separately.
"""

from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.plan.fit.answer import AT_THE_LIMIT, DOES_NOT_FIT, FITS, Fit, Verdict
from autotune.plan.fit.document import fit_document, fits_document
from autotune.plan.fit.dry_runs import OnRank, RankProgress, answers, configs_of, pipeline_ranks

__all__ = [
    "AT_THE_LIMIT",
    "DOES_NOT_FIT",
    "DRY_RUN_TRAINER",
    "FITS",
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
