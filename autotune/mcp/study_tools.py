"""Tools about studies: list them, read their results, and through a service submit and control
them.

`source` is a store, or a service accessed with `autotune.Client`. On a service, the token decides
what the caller may see and do, and rejected requests become tool errors. A store is only read: to
run studies, an agent should use a service with a token.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from autotune.errors import NotFoundError
from autotune.mcp.spec_tools import Spec, Top
from autotune.mcp.tool_answers import (
    KnownConfig,
    KnownConfigs,
    LaunchFiles,
    StudyReport,
    StudySummary,
    TargetRanking,
    TrialRow,
    config_text,
    rounded,
)
from autotune.results.answers import trial_of
from autotune.spec import StudyStatus, Trial
from autotune.spec.checks import member_of
from autotune.spec.texts.secrets import masked

if TYPE_CHECKING:
    from autotune.cli.source import Source

StudyId = Annotated[str, Field(description="Id of a study, or its name.")]


class StudyTools:
    """The tools for reading studies from one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def list_studies(
        self,
        status: Annotated[
            str, Field(description="Only studies with this status, e.g. RUNNING. Default: all.")
        ] = "",
        model: Annotated[
            str, Field(description="Only studies with this model. Default: all.")
        ] = "",
        cluster: Annotated[
            str, Field(description="Only studies on this cluster. Default: all.")
        ] = "",
        owner: Annotated[
            str, Field(description="Only studies that belong to this owner. Default: all.")
        ] = "",
        name: Annotated[str, Field(description="Only studies with this name. Default: all.")] = "",
        tag: Annotated[str, Field(description="Only studies with this tag. Default: all.")] = "",
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
        offset: Annotated[int, Field(ge=0, le=1 << 40, description="Studies to skip.")] = 0,
    ) -> list[StudySummary]:
        """List studies, newest first."""
        selected = member_of("status", status, StudyStatus) if status else None
        rows = self._source.studies(
            limit=limit, offset=offset, status=selected, model=model, cluster=cluster, owner=owner,
            name=name, tag=tag,
        )["studies"]  # fmt: skip
        return [
            StudySummary(
                id=s["id"],
                name=s["name"],
                status=s["status"],
                model=s["model"],
                cluster=s["cluster"],
                trials=sum(s["trials"].values()),
                speedup=s["speedup"],
            )
            for s in rows
        ]

    def study_result(self, study: StudyId) -> StudyReport:
        """Read a study's state and its result so far: the best config, the baseline, and the speedup with its 95% interval. A study with a target returns the target's ranking instead. Call this tool again while the study runs."""
        return _report(self._source.status(study))

    def study_trials(
        self,
        study: StudyId,
        offset: Annotated[int, Field(ge=0, description="Trials to skip.")] = 0,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> list[TrialRow]:
        """List the trials of a study by number: what was measured, what was predicted, how a trial failed."""
        return [
            TrialRow.of(trial)
            for trial in self._source.result(study).shown[offset : offset + limit]
        ]

    def failure_log(
        self,
        study: StudyId,
        number: Annotated[int, Field(ge=0, description="Number of the failed trial.")],
    ) -> str:
        """Read the evidence of one failed trial: kind, message, exception and last log lines."""
        trial = trial_of(self._source.result(study), number)
        if trial.failure is None:
            raise NotFoundError(
                f"trial {number} of study {study} did not fail; its status is {trial.status.lower()}",
                remedy="`study_trials` lists the trials",
            )
        return trial.failure.evidence

    def explain(
        self,
        study: StudyId,
        number: Annotated[
            int | None, Field(description="Number of a trial. Default: the winner.")
        ] = None,
    ) -> list[str]:
        """Explain in sentences why a trial won or lost."""
        text: list[str] = self._source.explain(study, number)["text"]
        return list(text)

    def best_known(
        self,
        model: Annotated[
            str, Field(description="Name of the model, from the catalog or from an earlier study.")
        ],
        cluster: Annotated[
            str, Field(description="Only measurements on this cluster. Default: any.")
        ] = "",
        trainer: Annotated[
            str, Field(description="Only measurements with this trainer. Default: any.")
        ] = "",
        runner: Annotated[
            str,
            Field(description="Only measurements with this runner. Default: all but simulated."),
        ] = "",
        num_gpus: Annotated[
            int | None, Field(ge=1, description="Only measurements on this many GPUs.")
        ] = None,
        measured_after: Annotated[
            datetime | None, Field(description="Only measurements after this time. Default: all.")
        ] = None,
        seq_len: Annotated[
            int | None, Field(ge=1, description="Tokens per sequence, for predictions.")
        ] = None,
        global_batch_size: Annotated[
            int | None, Field(ge=1, description="Sequences per step, for predictions.")
        ] = None,
        metric: Annotated[
            Literal["throughput", "goodput", "cost"] | None,
            Field(description="Rank by this metric; needs a cluster. Default: by speed."),
        ] = None,
        stability_weight: Annotated[
            float | None,
            Field(ge=0, le=1, description="Rank with this stability weight; needs a cluster."),
        ] = None,
        top: Top = 3,
    ) -> KnownConfigs:
        """Find the best known configs of a model across all studies. If nothing was measured, the configs come from the most similar workload or the cost model's ranking. `source` says which."""
        ranking = self._source.best_across(
            model=model, cluster=cluster, trainer=trainer, runner=runner, num_gpus=num_gpus,
            measured_after=measured_after, seq_len=seq_len, global_batch_size=global_batch_size,
            metric=metric, stability_weight=stability_weight, top=top,
        )  # fmt: skip
        return KnownConfigs(
            source=ranking["source"],
            configs=[_known_config(row) for row in ranking["configs"]],
            notes=ranking["notes"],
        )

    def export_launch(
        self,
        study: StudyId,
        trainer: Annotated[str, Field(description="A trainer from the catalog.")],
        options: Annotated[
            dict[str, str | int | float] | None,
            Field(description='Trainer options, e.g. {"data_path": "/data"}.'),
        ] = None,
        trial: Annotated[
            int | None,
            Field(ge=0, description="Number of the trial to export. Default: the best config."),
        ] = None,
    ) -> LaunchFiles:
        """Export the study's best config, or that of a trial, for a trainer: command line, environment and files. Nothing is written or started."""
        launch = masked(self._source.export(study, trainer, options or {}, trial=trial))
        return LaunchFiles(
            trainer=launch["trainer"],
            config=config_text(launch["config"]),
            argv=list(launch["argv"]),
            env=dict(launch["env"]),
            files=dict(launch["files"]),
            notes=list(launch["notes"]),
        )


class SteeringTools:
    """The tools that change studies; they need a service."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def submit_study(
        self,
        spec: Spec,
        idempotency_key: Annotated[
            str,
            Field(
                description="Any text. Submitting twice with the same key creates one study.",
                min_length=1,
                max_length=200,
            ),
        ],
    ) -> StudyReport:
        """Submit a study to the service, which runs real trials. Call `plan` first. The token's scope must allow submitting."""
        created = self._source.submit(spec, idempotency_key=idempotency_key)["study"]
        return _report(self._source.status(created["id"]))

    def steer_study(
        self,
        study: StudyId,
        action: Annotated[
            Literal["pause", "resume", "stop", "cancel"],
            Field(
                description="pause: start no new trials. resume: continue. stop: let running trials finish, then report the best config. cancel: kill running trials and end the study."
            ),
        ],
    ) -> StudyReport:
        """Pause, resume, stop or cancel a study on the service."""
        self._source.act(study, action)
        return _report(self._source.status(study))


def _known_config(row: dict[str, Any]) -> KnownConfig:
    """Return a row of `best_across` as a tool's answer."""
    best, study = row["best"], row["study"]
    measured, predicted = best["measurement"], best["estimate"]
    return KnownConfig(
        config=config_text(best["config"]),
        study=study["id"] if study else "",
        tokens_per_s=rounded(measured["tokens_per_s"]) if measured else None,
        predicted_tokens_per_s=rounded(predicted["tokens_per_s"]) if predicted else None,
    )


def _report(document: dict[str, Any]) -> StudyReport:
    """Return a study's status document as a tool's answer."""
    study = document["study"]
    best, baseline = (
        Trial.from_dict(document[key]) if document[key] else None for key in ("best", "baseline")
    )
    return StudyReport(
        id=study["id"],
        name=study["name"],
        status=study["status"],
        message=study["message"],
        trials=study["trials"],
        best=TrialRow.of(best) if best else None,
        baseline=TrialRow.of(baseline) if baseline else None,
        speedup=document["speedup"],
        speedup_low=document["speedup_low"],
        speedup_high=document["speedup_high"],
        too_noisy=f"{noisy['message']}; {noisy['remedy']}"
        if (noisy := document.get("too_noisy"))
        else "",
        target=TargetRanking.of(document["target"]) if document["target"] else None,
        notes=list(document["notes"]),
    )
