"""Studies without the secrets of their specs, for all readers. The store keeps the secrets, because
trials need them to start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.ports import HistoryEvent, StudyRecord
from autotune.spec import Study, Trial
from autotune.spec.texts.secrets import FROM_ENVIRONMENT, masked, secret_places, secrets_of, without


def secrets_of_record(record: StudyRecord) -> frozenset[str]:
    """Return the secrets in a study's spec, except those too short to search for in other texts."""
    study = record.study
    return secrets_of(study.trainer_options, study.runner_options, study.data, record.spec)


def masked_record(record: StudyRecord) -> StudyRecord:
    """Return the record with `***` instead of secrets."""
    study, spec = record.study, masked(record.spec)
    options, runner_options, data = (
        masked(part) for part in (study.trainer_options, study.runner_options, study.data)
    )
    secrets = secrets_of_record(record)
    plain = (study.trainer_options, study.runner_options, study.data, record.spec)
    if not secrets and (options, runner_options, data, spec) == plain:
        return record
    return replace(
        record,
        study=replace(study, trainer_options=options, runner_options=runner_options, data=data),
        spec=spec,
        message=without(secrets, record.message),
        result=without(secrets, record.result),
    )


def masked_trials(record: StudyRecord, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials with `***` instead of secrets that the program printed in its failures."""
    secrets, stored = secrets_of_record(record), list(trials)
    if not secrets:
        return stored
    return [
        trial
        if (failure := trial.failure) is None
        else replace(
            trial,
            failure=replace(
                failure,
                message=without(secrets, failure.message),
                exception=without(secrets, failure.exception),
                log_tail=without(secrets, failure.log_tail),
            ),
        )
        for trial in stored
    ]


def masked_events(record: StudyRecord, events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Return the study's events with `***` instead of secrets."""
    secrets = secrets_of_record(record)
    return [
        replace(event, data=without(secrets, event.data)) if secrets else event for event in events
    ]


def secrets_note(study: Study) -> str:
    """Return a note about secrets in a spec, for its author; empty if it has none."""
    places = secret_places(study.trainer_options)
    if not places:
        return ""
    variables = [name for name in places if name in (study.trainer_options.get("env") or {})]
    remedy = f"`env: {{{variables[0] if variables else 'NAME'}: {FROM_ENVIRONMENT}}}` takes the variable from the environment of the process that runs the trial and does not store the value"
    return f"the spec seems to contain secrets ({', '.join(places)}). The store keeps these values; reports, pages and other users' exports show ***. {remedy}"
