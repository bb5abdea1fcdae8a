"""The shapes of the REST responses, with examples, for OpenAPI. `autotune.results` makes the
contents.

The models only describe responses, which are not validated against them at run time; tests check
that they match.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.spec import StudyStatus, Wanted

Plain = dict[str, Any]


class Answer(BaseModel):
    """A response. Later releases may add keys."""

    model_config = ConfigDict(extra="allow")


class SpecProblem(Answer):
    """An error in the text of a spec."""

    message: str = Field(examples=["there is no key 'modell'"])
    field: str = Field(
        description="keys and positions in lists, joined by dots", examples=["modell"]
    )
    remedy: str = Field(examples=["did you mean model?"])
    file: str = Field(description="always empty in an answer to a request")
    line: int | None = Field(
        description="from 1; null if the error has no position, e.g. a missing key", examples=[3]
    )
    column: int | None = Field(description="in characters, from 1", examples=[1])


class ErrorBody(Answer):
    """What went wrong (the rule and the offending values), in which field, and what to do."""

    kind: str = Field(examples=["spec"])
    message: str = Field(examples=["there is no key 'modell'"])
    field: str = Field(examples=["modell"])
    remedy: str = Field(examples=["did you mean model?"])
    problems: list[SpecProblem] = Field(
        default=[],
        description="the errors in a spec's text, in order; absent if the failure is not a spec error",
    )


class ErrorDocument(Answer):
    """The document of every error."""

    error: ErrorBody


class BudgetSummary(Answer):
    """The limits of a study. The first one reached ends it."""

    max_trials: int = Field(
        description="number of trials that the searcher may propose", examples=[20]
    )
    max_wall_s: float = Field(
        description="seconds since the start, excluding pauses", examples=[3600.0]
    )
    max_failed_trials: int = Field(examples=[10])
    max_gpu_s: float | None = Field(description="limit in rank-seconds; null means no limit")
    min_gain: float | None = Field(
        description="the search ends if the next eight trials are expected to gain less than this. With 0, the search never ends early. With "
        "null, the search ends when a trial would take more time than it saves in your training run"
    )
    train_tokens: float | None = Field(
        description="length of your training run in tokens. null means unknown; a run as long as 200 trials is assumed"
    )
    parallel_trials: int = Field(description="trials at once", examples=[1])


class StudySummary(Answer):
    """A study."""

    id: str = Field(examples=["kfm4a2b9xq"])
    name: str = Field(examples=["gpt2-medium-1x8"])
    status: StudyStatus = Field(description="current state")
    wanted: Wanted = Field(description="the last request; the study's controller follows it")
    interrupted: bool = Field(
        default=False,
        description="the study is not over, but no controller runs it; `message` says what continues it. Known in lists and in the response for one study",
    )
    message: str
    model: str = Field(examples=["gpt2-medium"])
    cluster: str = Field(description="cluster of the job", examples=["h100-sxm-1x8"])
    at_hand: str | None = Field(
        default=None,
        description="the smaller cluster that runs proxies of the job. null if trials run on `cluster`",
    )
    trainer: str
    runner: str
    searcher: str
    objective: Plain = Field(description="metric and stability_weight")
    budget: BudgetSummary
    owner: str
    created_at: str
    waits_behind: Plain | None = Field(
        default=None,
        description="while the study waits: how many studies are ahead in the queue, and how many owners these studies have, as {studies, owners}; only in the response for one study",
    )
    started_at: str | None
    ended_at: str | None
    updated_at: str
    elapsed_s: float
    trials: dict[str, int] = Field(
        description="trials by status", examples=[{"COMPLETED": 4, "FAILED": 1}]
    )
    speedup: float | None = Field(
        description="speed of the winner relative to the baseline. null until the study has ended",
        examples=[1.31],
    )
    too_noisy: Plain | None = Field(
        default=None,
        description="spread of the baseline if the study is too noisy to support a claim; otherwise null",
    )
    tags: list[str] = Field(default=[], description="tags that the study can be found by")
    ray: Plain | None = Field(
        default=None, description="the Ray job that runs the study: job, url. null if there is none"
    )
    placed: list[Plain] = Field(
        default=[],
        description="where the ranks of the running or most recent trials are placed: trial, node, ranks, gpus",
    )
    waiting: list[Plain] = Field(
        default=[], description="trials that wait for ranks, each with its reason: trial, reason"
    )
    result: Plain


class TrialDocument(Answer):
    """A trial: its config, its estimate and its measurement."""

    number: int
    status: str
    config: Plain
    estimate: Plain | None
    measurement: Plain | None
    reward: Plain | None
    failure: Plain | None


class StudyAnswer(Answer):
    """One study."""

    study: StudySummary


class SubmittedAnswer(StudyAnswer):
    """A study that was submitted."""

    notes: list[str] = Field(
        description="warnings for the owner, for example that the spec contains secrets"
    )


class RecordAnswer(Answer):
    """A study in full."""

    record: Plain


class NoteDocument(Answer):
    """A note on a study."""

    number: int
    at: str
    author: str = Field(
        description="owner of the token. Empty for the user of the service's machine"
    )
    text: str


class NoteAnswer(Answer):
    """One note."""

    note: NoteDocument


class NoteList(Answer):
    """Notes, oldest first."""

    notes: list[NoteDocument]


class DeletionDocument(Answer):
    """What is deleted with a study."""

    study: str
    name: str
    trials: int
    measured: int = Field(
        description="measured configs that queries across studies will no longer find"
    )
    learners: list[Plain] = Field(description="later studies that may have learned from this study")
    held_by: list[Plain] = Field(
        description="unfinished studies that learned from this study; it cannot be deleted until these studies have ended"
    )


class DeletionAnswer(Answer):
    """What was deleted with a study, or would be."""

    deletion: DeletionDocument


class StudyList(Answer):
    """Studies, newest first."""

    studies: list[StudySummary]
    next_offset: int | None = Field(description="start of the next page; null on the last")


class StatusAnswer(StudyAnswer):
    """A study with its best config and the baseline, measured the same way."""

    best: TrialDocument | None
    baseline: TrialDocument | None
    unmeasured_baseline: TrialDocument | None = Field(
        default=None,
        description="set if the baseline could not be measured: either its failed trial, or a trial with status INFEASIBLE, the reason and the prediction. No speedup is then reported",
    )
    speedup: float | None = Field(
        description="speed of the best config relative to the baseline", examples=[1.31]
    )
    speedup_low: float | None = Field(
        default=None, description="lower end of the speedup's 95% interval", examples=[1.27]
    )
    speedup_high: float | None = Field(
        default=None, description="upper end of the speedup's 95% interval", examples=[1.35]
    )
    too_noisy: Plain | None = Field(
        default=None,
        description="if the baseline's runs disagree too much for any claim: tokens_per_s_low, tokens_per_s_high, factor, limit, runs, message, remedy; else null",
    )
    tied_with: list[int] = Field(
        default=[], description="trials whose configs are statistically tied with the best"
    )
    infeasible: dict[str, int] = Field(
        default={}, description="configs that cannot run here, counted by reason"
    )
    target: Plain | None = Field(
        default=None,
        description="how the target's configs rank, for a study that runs proxies of these configs; else null",
    )
    notes: list[str]


class BestAnswer(StatusAnswer):
    """The best configs of a study."""

    objective: Plain = Field(description="metric and stability_weight that rank the configs")
    configs: list[TrialDocument]


class ExplainAnswer(Answer):
    """Why a trial won or lost."""

    trial: TrialDocument
    text: list[str] = Field(description="sentences, the most important first")
    objective: Plain
    relative_to: str = Field(
        description="the trial that this trial's speed is compared with in the reward",
        examples=["the baseline's"],
    )
    reward: Plain | None = Field(
        description="total, throughput, stability and parts; null without a measurement"
    )
    parts: Plain
    formulas: Plain = Field(description="how each part of stability is scored, as text")
    shares: Plain = Field(description="contributions of throughput and stability to the total")
    against: Plain = Field(
        description="baseline, runner-up or winner: number, config_changes, speed_ratio, reward"
    )
    step_parts_s: Plain
    step_parts_source: str
    notes: list[str] = Field(
        description="for the winner: how certain it is and why; empty for other trials"
    )


class KnownConfig(Answer):
    """A config with its measurement. `measurement` and `reward` are null if there is only an estimate."""

    config: Plain
    estimate: Plain | None
    measurement: Plain | None
    reward: Plain | None


class PastBest(Answer):
    """A config and the study that measured it; null if none did."""

    study: StudySummary | None
    best: KnownConfig


class BestAcross(Answer):
    """The best known configs, and the basis of the answer (`source`)."""

    study: StudySummary | None
    best: KnownConfig | None
    baseline: TrialDocument | None
    speedup: float | None
    configs: list[PastBest]
    source: Literal["measured", "nearest", "cost_model", "none"]
    objective: Plain | None = Field(
        description="metric and stability_weight that rank the configs. null if they are ranked by speed"
    )
    evidence: Plain | None = Field(
        description="measurements behind the response: trials, configs, studies, last_at, age_s, spread"
    )
    untried: Plain | None = Field(
        description="how many configs in the space are valid and how many are measured, and the best untried config according to the cost model"
    )
    nearest: Plain | None = Field(
        description="the workload for which these configs were measured, the distance to the requested workload (the norm of the log2 ratios of their sizes), and the cost model's estimate for the requested workload"
    )
    assumed: Plain | None = Field(description="values assumed for omitted parameters")
    observed: list[Plain] = Field(
        description="observed runs, the fastest first; never the best config"
    )
    notes: list[str]


class TrialList(Answer):
    """Trials by number."""

    trials: list[TrialDocument]


class EventDocument(Answer):
    """An event in a study's history."""

    sequence: int
    at: str
    kind: str = Field(examples=["trial.ended"])
    data: Plain


class EventList(Answer):
    """History, in order."""

    events: list[EventDocument]


class PlanRow(Answer):
    """A config with its estimate."""

    rank: int
    config: Plain
    estimate: Plain


class PlanAnswer(Answer):
    """Feasible configs ranked by the cost model, and the infeasible ones counted by reason."""

    configs: list[PlanRow]
    feasible: int
    infeasible: dict[str, int]
    assumed: list[str] = Field(
        description="sentences that state what the predictions assume about the model"
    )
    clusters: list[Plain] = Field(
        default_factory=list, description="the best on each requested cluster; otherwise absent"
    )


class ObservedRuns(Answer):
    """Observed runs, which people started themselves."""

    runs: list[Plain] = Field(
        description="kind, id, program, command, outcome, exit_code, workload, config, estimate, measurement, failure, versions"
    )
    next_offset: int | None = Field(description="start of the next page; null on the last")


class ReviewAnswer(Answer):
    """The review of a launch."""

    understood: str
    assumed: list[str]
    missing: list[Plain] = Field(
        description="what was not found, and how to provide it; until then nothing is predicted"
    )
    fits: bool | None = Field(
        description="whether the launch is expected to fit. null while a value is missing, or if the launch needs more or less memory than predicted by an unknown amount"
    )
    estimate: Plain | None
    observed: Plain | None
    earlier: Plain | None = Field(
        description="measurement of the nearest config: an observed run or a trial"
    )
    edits: list[Plain] = Field(
        description="sorted by gain, the best first. Each has knob, from, to, line, gain with its 90% interval, memory_bytes"
    )
    together: Plain | None
    trials: list[Plain] = Field(
        default=[],
        description="if no edit is certain to be faster: changes worth a trial, in the format of "
        "`edits`, each with its probability of being faster",
    )
    if_out_of_memory: Plain | None = Field(
        default=None,
        description="changes that would make the launch fit, if the launch may not fit and no edit is certain to make it fit",
    )
    warnings: list[Plain]


class ExportAnswer(Answer):
    """The files and the command that launch a trainer with a config, and a scheduler job that starts it."""

    trainer: str
    config: Plain
    argv: list[str]
    env: dict[str, str]
    files: dict[str, str]
    notes: list[str]
    tuned: Plain
    job: Plain


class HealthAnswer(Answer):
    """Whether the service works. Callers with the `read` scope also see each check."""

    status: str = Field(examples=["ok"])
    version: str


ERRORS: dict[int, str] = {
    400: "The request is not valid HTTP",
    401: "The token is missing or wrong",
    403: "The token's scope is insufficient, the study belongs to somebody else, or the request came from another site",
    404: "No such study, trial or trainer",
    405: "The address does not accept this method",
    408: "The request was not complete in time",
    409: "The study's state forbids the request, or the idempotency key was used for a different spec",
    413: "The request is too large",
    415: "A spec must be JSON or YAML",
    421: "The Host header is not a name of this service",
    422: "The spec or a parameter is wrong, or nothing in the space is feasible",
    429: "The caller sends too many requests",
    500: "The service failed unexpectedly",
    503: "The store cannot be reached, or too many requests or studies wait",
}


def responses(
    *statuses: int, ok: int = 200, model: type[BaseModel]
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route: success, the given errors, and the errors that any route can
    return."""
    errors = {*statuses, 400, 401, 403, 405, 408, 413, 421, 422, 429, 500, 503} - {304}
    return {
        ok: {"model": model, "description": (model.__doc__ or "").strip()},
        **({304: {"description": "The response has not changed"}} if 304 in statuses else {}),
        **{
            status: {"model": ErrorDocument, "description": ERRORS[status]}
            for status in sorted(errors)
        },
    }


EXAMPLE_SPEC: dict[str, Any] = {
    "name": "gpt2-medium-1x8",
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 512},
    "space": {
        "tp": [1, 2, 4, 8],
        "pp": [1, 2],
        "micro_batch_size": {"powers_of_two": [1, 16]},
        "precision": ["bf16"],
    },
    "budget": {"max_trials": 12},
    "searcher": "bayesian",
    "runner": "simulated",
}
