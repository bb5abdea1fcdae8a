"""Where the parts meet: a spec becomes a study, a study becomes a running loop, a finished loop becomes an answer.

    sources.py    load_study, open_store, plan_of       assembly.py   what a study's loop needs
    running.py    tune, submit_study, run_study, act    answers.py    result_of, document, explain, past_studies
    measuring.py  calibrate                             rankings.py   rerank, pareto, best_document

Everything that these choose by name (searcher, runner, trainer, store) is imported when it is asked for.
"""

from autotune.wiring.answers import (
    Result,
    document,
    explain,
    explained,
    export_document,
    past_studies,
    result_from,
    result_of,
    study_document,
    trial_document,
)
from autotune.wiring.measuring import calibrate
from autotune.wiring.rankings import best_document, front_documents, pareto, rerank
from autotune.wiring.running import ACTIONS, act, run_study, submit_study, tune
from autotune.wiring.sources import estimate_of, load_study, open_store, plan_of, read_document, what_if_of

__all__ = [
    "ACTIONS",
    "Result",
    "act",
    "best_document",
    "calibrate",
    "document",
    "estimate_of",
    "explain",
    "explained",
    "export_document",
    "front_documents",
    "load_study",
    "open_store",
    "pareto",
    "past_studies",
    "plan_of",
    "read_document",
    "rerank",
    "result_from",
    "result_of",
    "run_study",
    "study_document",
    "submit_study",
    "trial_document",
    "tune",
    "what_if_of",
]
