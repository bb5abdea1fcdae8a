"""Provenance of a study's best config: what was tuned, and how it was measured. Exported files
include it, so that they can be read without this package.

study {id, name}
model, cluster, trainer, runner
config                                            its label
autotune                                          version of this package
tokens_per_s, step_time_s, step_time_spread       spread: relative
steps, final_rounds
measured_at                                       ISO 8601, UTC
trials {measured, failed}
default                                           {config, tokens_per_s, step_time_s, step_time_spread} or null
speedup, speedup_low, speedup_high                numbers or null
too_noisy                                         why there is no speedup, or null
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.results.result import Result
from autotune.spec import Study, Trial, TrialPurpose, config_label
from autotune.trainers import Launch


def in_environment_of(study: Study, launch: Launch, inherited: Mapping[str, str]) -> Launch:
    """Return the launch with the environment variables of its trials: those that the trials
    `inherited`, which a note lists, and `runner.env` of the study. Variables of the launch override
    both, as in trials.

    A note lists variables of single nodes (`runner.node_env`), because a launch is the same on all
    nodes.
    """
    options = study.runner_options
    runner_env = {name: str(value) for name, value in (options.get("env") or {}).items()}
    more = {n: text for n, text in inherited.items() if n not in {*runner_env, *launch.env}}
    notes = [
        f"the trials had {_listed(variables)} on node {node}; set the same variables on the node that you use"
        for node, variables in (options.get("node_env") or {}).items()
    ]
    if more:
        notes.append(
            f"the trials inherited {_listed(more)} from autotune's environment, so this launch sets the same"
        )
    return replace(launch, env={**more, **runner_env, **launch.env}, notes=(*launch.notes, *notes))


def _listed(variables: Mapping[str, Any]) -> str:
    """Return `NAME=VALUE, ...`."""
    return ", ".join(f"{name}={value}" for name, value in variables.items())


def provenance(result: Result) -> dict[str, Any]:
    """Return the provenance as JSON values (see above); empty without a measured config."""
    from autotune import __version__

    best, study = result.best, result.record.study
    if best is None or best.measurement is None:
        return {}
    ended = best.ended_at or result.record.ended_at
    return {
        "study": {"id": result.record.id, "name": study.name},
        "model": study.workload.model.name,
        "cluster": study.workload.cluster.name,
        "trainer": study.trainer,
        "runner": study.runner,
        "autotune": __version__,
        **_measured(best),
        "steps": len(best.measurement.step_times_s),
        "final_rounds": result.final_rounds,
        "measured_at": ended.isoformat(timespec="seconds") if ended else None,
        "trials": {"measured": _searched(result.measured), "failed": _searched(result.failed)},
        "default": _measured(result.baseline)
        if result.baseline and result.baseline.measurement
        else None,
        "speedup": result.speedup,
        "speedup_low": result.speedup_low,
        "speedup_high": result.speedup_high,
        "too_noisy": str(result.too_noisy) if result.too_noisy is not None else None,
    }


def _searched(trials: tuple[Trial, ...]) -> int:
    """Return the number of trials without final runs, which re-measure configs."""
    return sum(trial.purpose is not TrialPurpose.FINAL for trial in trials)


def _measured(trial: Trial) -> dict[str, Any]:
    """Return the config and its measurement as JSON values."""
    measurement = trial.measurement
    assert measurement is not None
    return {
        "config": config_label(trial.config),
        "tokens_per_s": measurement.tokens_per_s,
        "step_time_s": measurement.step_time_s,
        "step_time_spread": measurement.step_time_spread,
    }
