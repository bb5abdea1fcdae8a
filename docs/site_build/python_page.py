"""The Python reference: which public names are shown, in which order. mkdocstrings fills in
signatures and docstrings."""

from __future__ import annotations

SECTIONS = {
    "Functions": (
        "autotune.api.load_study",
        "autotune.api.tune",
        "autotune.cost.estimate",
        "autotune.api.open_store",
    ),
    "Answers without hardware": (
        "autotune.api.plan_of",
        "autotune.api.what_if_of",
        "autotune.api.compare_clusters_of",
        "autotune.api.calibrate",
    ),
    "Will it fit?": ("autotune.api.fit", "autotune.plan.fit.Fit", "autotune.spec.DryRun"),
    "Results": (
        "autotune.results.result.Result",
        "autotune.results.result.Plots",
        "autotune.results.figure.Figure",
        "autotune.spec.Trial",
        "autotune.spec.Measurement",
        "autotune.spec.Estimate",
    ),
    "Callbacks": ("autotune.study.progress",),
    "The service's client": ("autotune.client.Client", "autotune.client.AsyncClient"),
    "Inputs": (
        "autotune.spec.Study",
        "autotune.spec.Workload",
        "autotune.spec.ModelSpec",
        "autotune.spec.ClusterSpec",
        "autotune.spec.ParallelConfig",
        "autotune.spec.Objective",
        "autotune.spec.Budget",
        "autotune.spec.MeasureSpec",
    ),
    "Your own search loop": (
        "autotune.space.SearchSpace",
        "autotune.search.make_searcher",
        "autotune.search.Searcher",
    ),
    "Trainers": (
        "autotune.trainers.Trainer",
        "autotune.trainers.Launch",
        "autotune.trainers.StepMetrics",
    ),
    "Runners": (
        "autotune.ports.TrialRunner",
        "autotune.ports.TrialRequest",
        "autotune.ports.AttemptEnded",
    ),
    "Ray Train": ("autotune.ray.tune_torch_trainer", "autotune.ray.with_config"),
    "Optuna": ("autotune.search.optuna_study",),
    "Errors": ("autotune.errors",),
}


def python_page() -> str:
    """The page, with a directive of mkdocstrings for each name."""
    lines = [
        "# Python",
        "",
        "`import autotune` is fast, because names are loaded on first use. Most programs need three functions: `autotune.load_study`, `autotune.tune`",
        "and `autotune.estimate`. [Use it from Python](../how-to/python.md) has examples.",
        "",
    ]
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: {name}", ""]
    return "\n".join(lines)
