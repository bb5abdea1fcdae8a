"""A trial's page: its config, why it was tried, its steps, its loss, step time and memory by cause,
its failure, and its launch.

The trial's events are found without reading the whole history. Trials are proposed in the order of
their numbers, so the event that proposed one is found by bisection; its other events follow until
it ends. At most `MAX_EVENTS` events are read from there on, so later events are missing if many
other events happened meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter
from markupsafe import Markup
from starlette.responses import Response

from autotune import api
from autotune.diagnosis import lines_of
from autotune.errors import AutotuneError, NotFoundError
from autotune.ports import EventKind, HistoryEvent, ServiceStore, StudyReader
from autotune.report.comparison import knob_texts
from autotune.report.figures.figure_html import figure_html
from autotune.report.figures.one_trial import TrialSource, trial_figures
from autotune.report.reward_tables import reward_rows
from autotune.results.answers import trial_of
from autotune.results.diagnoses import diagnosis_of_run
from autotune.results.masking import masked_events
from autotune.results.result import Result
from autotune.service.http.service_state import ServiceState, TheService
from autotune.service.pages.export_page import command_of
from autotune.service.pages.page_requests import REFRESH_S, Visitor
from autotune.service.pages.rendering import render
from autotune.service.routes.studies import export_document
from autotune.spec import Trial, TrialStatus
from autotune.spec.texts.as_text import UNKNOWN

router = APIRouter()

PURPOSES: Mapping[str, str] = {
    "baseline": "baseline: every trial is compared with it",
    "reference": "the baseline in fp32, the reference for losses",
    "search": "search trial",
    "final": "re-measured side by side before the winner is chosen",
    "proxy": "on fewer GPUs, representing a config of the target",
}
"""why a trial is run, by purpose"""


@router.get("/studies/{study_id}/trials/{number:int}")
async def trial(study_id: str, number: int, service: TheService, caller: Visitor) -> Response:
    """Show a running or ended trial."""
    values = await service.run_heavy(caller, partial(_values, service, study_id, number))
    return render("trial.html", caller=caller, **values)


@router.get("/studies/{study_id}/trials/{number:int}/{figure}.csv")
async def figure_data(
    study_id: str, number: int, figure: str, service: TheService, caller: Visitor
) -> Response:
    """Return the data of one of the trial's figures as CSV."""

    def load() -> str:
        result = service.views.result(study_id)
        figures = {f.name: f for f in trial_figures(_source(service.store, result, number))}
        if figure not in figures:
            raise NotFoundError(
                f"trial {number} has no figure {figure[:40]!r}",
                remedy=f"this trial's figures: {', '.join(figures)}",
            )
        return figures[figure].csv()

    return Response(await service.run_heavy(caller, load), media_type="text/csv; charset=utf-8")


def _values(service: ServiceState, study_id: str, number: int) -> dict[str, Any]:
    result = service.views.result(study_id)
    study, shown = result.record, trial_of(result, number)
    source = _source(service.store, result, number)
    url = f"/studies/{study.id}/trials/{number}"
    figures = [Markup(figure_html(f, csv=f"{url}/{f.name}.csv")) for f in trial_figures(source)]
    events = masked_events(
        service.store.study(study.id), events_of_trial(service.store, study.id, number)
    )
    reason = next(
        (str(e.data.get("reason") or "") for e in events if e.kind == EventKind.TRIAL_ASKED), ""
    )
    is_open = shown.status in (TrialStatus.PENDING, TrialStatus.RUNNING)
    explanation = api.explained(result, number) if not is_open else {"text": [], "notes": []}
    numbers = [t.number for t in result.shown]
    index = numbers.index(number)
    return {
        "study": {"id": study.id, "name": study.study.name, "trainer": study.study.trainer},
        "trial": shown.to_dict(),
        "measured": source.trial.to_dict()["measurement"],
        "is_best": result.best is not None and result.best.number == number,
        "why_tried": reason or shown.reason,
        "purpose": PURPOSES[str(shown.purpose)],
        "outcome": shown.reason if shown.reason != reason and not is_open else "",
        "knobs": _knobs(shown, result.baseline),
        "figures": figures,
        "explanation": [*explanation["text"], *explanation["notes"]],
        "diagnosis": list(lines_of(diagnosis_of_run(source.trial)))
        if source.trial.is_measured
        else [],
        "reward": reward_rows(explanation),
        "remarks": dict.fromkeys(
            e.data["message"] for e in events if e.kind == EventKind.TRIAL_REMARK
        ),
        "lost": [
            e.data["failure"]
            for e in events
            if e.kind == EventKind.ATTEMPT_ENDED and e.data.get("failure")
        ],
        "launch": _launch(service, study.id, study.study.trainer, number),
        "before": numbers[index - 1] if index else None,
        "after": numbers[index + 1] if index + 1 < len(numbers) else None,
        "baseline": result.baseline.number if result.baseline else None,
        "refresh": REFRESH_S if is_open and not study.status.is_terminal else 0,
    }


def _source(store: ServiceStore, result: Result, number: int) -> TrialSource:
    """Return the data for the trial's figures. Raises `NotFoundError`."""
    trial = next((t for t in result.trials if t.number == number), None)
    if trial is None:
        raise NotFoundError(
            f"study {result.record.id} has no trial {number}",
            remedy="the study's page lists the trials",
        )
    study = result.record.study
    return TrialSource(
        trial=trial,
        steps=store.steps(result.record.id, number),
        warmup_steps=study.measure.warmup_steps,
        capacity_bytes=study.workload.cluster.gpu.memory_bytes,
    )


def _knobs(trial: Trial, baseline: Trial | None) -> list[dict[str, Any]]:
    """Return the trial's knobs with their values and the measured baseline's."""
    values = knob_texts(trial.config)
    baseline_values = knob_texts(baseline.config) if baseline is not None else values
    return [
        {
            "name": name,
            "value": value,
            "default": baseline_values.get(name, UNKNOWN),
            "differs": baseline_values.get(name) != value,
        }
        for name, value in values.items()
    ]


def _launch(service: ServiceState, study_id: str, trainer: str, number: int) -> dict[str, Any]:
    """Return {command, notes} for the trial's config in the study's own trainer, or {error, remedy}
    if it cannot be launched."""
    try:
        document = export_document(service, None, study_id, trainer, [], "", number)
    except AutotuneError as error:
        return {"error": error.message, "remedy": error.remedy}
    return {"error": "", "command": command_of(document), "notes": document["notes"]}


PAGE, MAX_EVENTS = 200, 2000
"""events to read at once, and in total"""


def events_of_trial(store: StudyReader, study_id: str, number: int) -> list[HistoryEvent]:
    """Return the trial's events, in order. Raises `NotFoundError`."""
    low, high = 0, store.revision(study_id).events
    while high - low > PAGE:
        middle = (low + high) // 2
        proposal = _next_proposal(store, study_id, middle, high)
        if proposal is not None and proposal.data["number"] <= number:
            low = proposal.sequence - 1
        else:
            high = middle
    events: list[HistoryEvent] = []
    after, last = low, low + MAX_EVENTS
    while after < last and (part := store.events(study_id, after=after, limit=PAGE)):
        after = part[-1].sequence
        events += [event for event in part if event.data.get("number") == number]
        if any(event.kind == EventKind.TRIAL_ENDED for event in events):
            break
    return events


def _next_proposal(
    store: StudyReader, study_id: str, after: int, until: int
) -> HistoryEvent | None:
    """Return the first event after `after`, up to `until`, that proposed a trial; None if there is
    none."""
    while after < until and (
        part := store.events(study_id, after=after, limit=min(PAGE, until - after))
    ):
        after = part[-1].sequence
        if (
            proposal := next((event for event in part if event.kind == EventKind.TRIAL_ASKED), None)
        ) is not None:
            return proposal
    return None
