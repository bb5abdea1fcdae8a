"""The ranking of a target's configs from the proxies of a study, as plain values that are stored with
the study's result.

target
    cluster, num_gpus       of the target           at_hand, num_gpus_at_hand     of the cluster that ran the proxies
    times                   num_gpus / num_gpus_at_hand
    proxies                 number of measured proxies
    configs                 the best configs: step time and tokens/s with 90% intervals, the probability that their sends stall and the step time in that case,
                            the proxies that ran for them, and the constants of the cost model that no proxy determines (`blind`)
    gain_of_a_real_trial    expected relative gain of one trial on the target
    statement               how far the top-ranked config may be behind the best (`within`), the `confidence`, and the number of `replays` of published sweeps on which
                            that is based (`autotune.search.first_pick`); null if there is no statement, for the reason in `no_statement`
    without_proxy           number of configs that may win but have no proxy here, by reason
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import numpy as np

from autotune.cost.learn.uncertainty import interval, upper_end
from autotune.space.proxy import Proxy

if TYPE_CHECKING:
    from autotune.search import Searcher
    from autotune.search.target_searcher import Standing, TargetSearcher

SHOWN = 10
"""maximum number of configs that are stored"""


@final
class TargetFindings:
    """Returns the findings about the target; recomputes them when the searcher's standing changed."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._standing: Standing | None = None
        self._document: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        """Plain values under the key `target`; empty for a study without one."""
        from autotune.search.target_searcher import TargetSearcher

        searcher = self._searcher
        if isinstance(searcher, TargetSearcher) and self._standing is not searcher.standing:
            self._standing, self._document = searcher.standing, {"target": _document(searcher)}
        return self._document


def _document(searcher: TargetSearcher) -> dict[str, Any]:
    from autotune.search.first_pick import statement

    target, at_hand, standing = searcher.space.workload.cluster, searcher.at_hand, searcher.standing
    times = target.num_gpus / at_hand.num_gpus
    shown = standing.order[:SHOWN]
    sigma = searcher.sigma_of(shown)
    measured = [trial for _, trial in searcher.trials if trial.is_measured]
    outlook = statement(
        standing.shortfall, with_proxies=bool(measured), stall_probability=float(standing.stall_probability[shown[0]]), times=times
    )  # fmt: skip
    return {
        "cluster": target.name,
        "num_gpus": target.num_gpus,
        "at_hand": at_hand.name,
        "num_gpus_at_hand": at_hand.num_gpus,
        "times": times,
        "proxies": len(measured),
        "configs": [_row(searcher, k + 1, int(i), float(sigma[k])) for k, i in enumerate(shown)],
        "gain_of_a_real_trial": standing.real_gain,
        "statement": None if isinstance(outlook, str) else outlook.to_dict(),
        "no_statement": outlook if isinstance(outlook, str) else "",
        "without_proxy": dict(searcher.without_proxy),
    }


def _row(searcher: TargetSearcher, rank: int, index: int, sigma: float) -> dict[str, Any]:
    """One config. `sigma`: standard deviation of ln step time."""
    standing, config, proxy = searcher.standing, searcher.space[index], searcher.proxy_at(index)
    tokens_per_s = math.exp(float(standing.log_tokens_per_s[index]))
    tokens = config.global_batch_size * searcher.space.workload.seq_len
    step_s, chance = tokens / tokens_per_s, float(standing.stall_probability[index])
    stalled_s = step_s * float(standing.stalled_factor[index])
    low_s = float(interval(np.array(step_s), sigma)[0])
    high_s = float(
        upper_end(*(np.full(1, value) for value in (step_s, sigma, stalled_s, chance)))[0]
    )
    return {
        "rank": rank,
        "config": config.to_dict(),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_low": tokens / high_s,
        "tokens_per_s_high": tokens / low_s,
        "step_time_s": step_s,
        "step_time_low_s": low_s,
        "step_time_high_s": high_s,
        "stall_probability": chance,
        "stalled_step_time_s": stalled_s,
        "oom_probability": 1.0 - float(standing.runs[index]),
        "proxies": searcher.trials_of(index),
        "blind": list(proxy.blind) if isinstance(proxy, Proxy) else None,
        "no_proxy": proxy if isinstance(proxy, str) else "",
    }
