"""Searchers, which choose the next config to try. They are registered as entry points of the group
`autotune.searchers`, by this package and by others.

    searcher.py         Searcher, the base class: ask, tell, expected_gain, reason; Problem: space, objective and history
    by_name.py          creates a searcher by name, or accepts an object passed by Python code
    random.py           grid.py           cost_ranked.py           rule_of_thumb.py
    bayesian.py         the default: Bayesian search on the cost model's prediction, corrected by every trial
    reinforce.py        a policy trained on simulated clusters, adapted during the study
    optuna.py           any Optuna sampler as a searcher
    optuna_study.py     our searchers as Optuna samplers; export of a study to an Optuna storage, with its evidence as artifacts; predicted memory as a constraint

    target_searcher.py  chooses proxies on fewer GPUs, and ranks the target's configs
    first_pick.py       bound on how much slower the target's top-ranked config may be than its best config
    model_based.py      ModelBasedSearcher, the base of bayesian and reinforce: estimates the gain of further trials
    surrogate/          its models of time, memory and failures
    objective_model.py  computes the score from the step time
    dominance.py        which candidates an out-of-memory failure rules out
    transfer.py         correlation of the cost model's errors between two workloads
    history.py          refits the cost model's constants to earlier studies
    policy.py           the policy of reinforce; its weights are in policy.json

A family of searchers has several names, FAMILY:VARIANT: its class has `variants` (name -> a line
about it) and takes a keyword `variant`.

Assumptions: the candidates are enumerated (`SearchSpace`). A trial takes far longer than choosing
it. One loop owns a searcher.
"""

from autotune.registry import PASSED
from autotune.search.by_name import (
    OneSearcher,
    SearcherFactory,
    check_searcher,
    make_searcher,
    make_target_searcher,
    searcher_name,
    searcher_names,
)
from autotune.search.searcher import Problem, Searcher, score
from autotune.search.transfer import transfer_weight

__all__ = [
    "PASSED",
    "OneSearcher",
    "Problem",
    "Searcher",
    "SearcherFactory",
    "check_searcher",
    "make_searcher",
    "make_target_searcher",
    "score",
    "searcher_name",
    "searcher_names",
    "transfer_weight",
]
