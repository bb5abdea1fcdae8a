"""A study's page, its report, the buttons that act on it, and its configs in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import Response

from autotune import api
from autotune.errors import SpecError
from autotune.ports import HistoryEvent, StudyRecord
from autotune.report.figures.figure_html import figure_html, figures_html
from autotune.report.figures.running_steps import running_steps, steps_left
from autotune.report.findings import failures_line
from autotune.report.history import history_line
from autotune.report.notes import infeasible_line, placed_lines
from autotune.report.reward_tables import cost_label
from autotune.report.target_text import HEADS, target_rows, target_sentences
from autotune.report.terminal import format_count
from autotune.results.answers import is_left, queue_position_text
from autotune.results.masking import masked_events
from autotune.results.result import Result
from autotune.service.http.access import Caller
from autotune.service.http.service_state import ServiceState, TheService
from autotune.service.pages.rendering import as_html, render
from autotune.service.pages.trial_table import TrialQuery, trial_table
from autotune.service.pages.visits import REFRESH_S, Changer, OwnForm, Visitor, done, said
from autotune.service.routes.studies import Action, acted
from autotune.spec import ModelSpec, StudyStatus, TrialStatus, Wanted, number_of
from autotune.spec.checks import one_of
from autotune.spec.study import METRICS

router = APIRouter()

SHOWN_EVENTS = 40
"""events of a study's history that its page shows, the newest first"""
READ_EVENTS = 400
"""events among which they are looked for: many are only for programs"""
MOST_WAITED_FOR = 1000
"""trials up to which a page waits for what has to be worked out of all of them: a tenth of a second
for its results, a second for its figures"""
SHOWN = 50
"""configs on the page of another order"""
MEASURED = (TrialStatus.COMPLETED, TrialStatus.STOPPED)
"""trials that were measured, by their status"""
WHOLE = "whole"
"""the parameter with which a browser without scripts asks for all of a page at once"""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'"


@router.get("/studies/{study_id}")
def study(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """One study: best config, trials, newest events, and buttons for the actions that are possible
    now.

    What comes of all trials of a large study is not waited for, unless it is at hand: the page is
    made without reading any trial, and fetches it.
    """
    query = TrialQuery.of(request.query_params)
    record = service.store.study(study_id)
    is_late = (
        _is_large(record)
        and WHOLE not in request.query_params
        and not service.views.is_at_hand(record.id)
    )
    results = {} if is_late else _results(service, service.views.result(record.id), query)
    tools, status = tools_of(service, caller, record), record.status
    events = masked_events(record, service.store.events(record.id, limit=READ_EVENTS, newest=True))
    document = api.study_document(record, is_left=is_left(service.store, record))
    late = f"/studies/{record.id}/results{query.address(page=query.page)}".partition("#")[0]
    return render(
        "study.html",
        caller=caller,
        said=said(request),
        tools=tools,
        study=document,
        shape=_shape(record.study.workload.model),
        trials=sum(record.trial_counts.values()),
        late=late if is_late else "",
        whole=f"?{request.url.include_query_params(**{WHOLE: 1}).query}",
        **results,
        scripted=is_late or results["figures"] == "",
        placed=_places(record) if status.is_terminal else [],
        actions=_possible_actions(status, record.wanted)
        if tools["mine"] and not status.is_terminal
        else [],
        history=_history(events),
        refresh=0 if status.is_terminal else REFRESH_S,
        events_url=f"/api/v1/studies/{record.id}/events?after={events[-1].sequence if events else 0}",
    )


@router.get("/studies/{study_id}/results")
def results(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """The part of a study's page that is worked out of all its trials, which that of a large study
    fetches after the rest."""
    query = TrialQuery.of(request.query_params)
    result = service.views.result(study_id)
    return render(
        "study_results.html",
        caller=caller,
        study=api.study_document(result.record),
        refresh=0 if result.record.status.is_terminal else REFRESH_S,
        **_results(service, result, query),
    )


@router.get("/studies/{study_id}/figures")
def figures(study_id: str, service: TheService, caller: Visitor) -> Response:
    """The part of a study's page that shows its figures, which those of a large study fetch after
    the rest."""
    return as_html(_figures(service, service.views.result(study_id)))


@router.get("/studies/{study_id}/running")
def running(study_id: str, service: TheService, caller: Visitor) -> Response:
    """The part of a study's page that shows its running trials, which change without a new
    event."""
    result = service.views.result(study_id)
    return render(
        "running_trials.html",
        caller=caller,
        study={"id": result.record.id},
        **_running(service, result),
    )


@router.get("/studies/{study_id}/report")
def report(study_id: str, service: TheService, caller: Visitor) -> Response:
    """The study's report, with figures."""
    from autotune.report.page import report_page

    result = service.views.result(study_id)
    text = report_page(result, service.views.figures(result.record.id))
    return as_html(text, headers={"Content-Security-Policy": REPORT_POLICY})


@router.post("/studies/{study_id}/act")
def act(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Does what a button on the study's page asks for."""
    action = one_of("action", form.get("action", ""), [str(a) for a in Action])
    record = acted(service, caller, study_id, action)
    return done(f"/studies/{record.id}", action)


@router.get("/studies/{study_id}/ranking")
async def ranking(
    study_id: str, request: Request, service: TheService, caller: Visitor
) -> Response:
    """The configs in the order that was asked for. Nothing is run again."""
    asked = {
        name: request.query_params.get(name, "")[:40]
        for name in ("metric", "stability_weight", "pareto")
    }

    def load() -> dict[str, Any]:
        return api.ranking_document(
            service.views.result(study_id),
            top=SHOWN,
            pareto=bool(asked["pareto"]),
            metric=asked["metric"] or None,
            stability_weight=_weight(asked["stability_weight"]),
        )

    document = await service.plan(caller, load)
    return render(
        "ranking.html",
        caller=caller,
        asked=asked,
        metrics=METRICS,
        cost=lambda merits: cost_label(merits["cost_of_million_tokens"], merits["cost_unit"]),
        **document,
    )


def tools_of(service: ServiceState, caller: Caller, record: StudyRecord) -> dict[str, Any]:
    """The values of the template `study_tools.html`. Of what the caller may not do nothing is
    offered."""
    writes = caller.allows("submit")
    mine = writes and caller.owns(record)
    notes = [
        {
            **note.to_dict(),
            "removable": mine or (writes and bool(caller.owner) and note.author == caller.owner),
        }
        for note in service.store.annotations.notes(record.id)
    ]
    return {
        "mine": mine,
        "writes": writes,
        "notes": notes,
        "tags": record.tags,
        "is_measured": any(record.trial_counts.get(status) for status in MEASURED),
        "ended": record.status.is_terminal,
        "queue": queue_line(service, record),
    }


def queue_line(service: ServiceState, record: StudyRecord) -> str:
    """Where the study stands in the queue, in a sentence; empty when it does not wait."""
    if record.status is not StudyStatus.QUEUED:
        return ""
    behind = service.queue_position(record.id)
    place = f"It {queue_position_text(behind)}" if behind else "It is about to start"
    supervisor = service.supervisor
    if supervisor is None:
        return f"{place}. This service starts no studies; run `autotune serve` on its store."
    return f"{place}. This service is running {len(supervisor.running)} of at most {number_of(service.options.max_studies, 'study', 'studies')}."


def _history(events: Sequence[HistoryEvent]) -> list[tuple[str, str]]:
    """(moment, sentence) of the newest events that say something to people, the newest first."""
    found = [event.to_dict() for event in reversed(events)]
    lines = [(str(event["at"]), history_line(event)) for event in found]
    return [(at, line) for at, line in lines if line][:SHOWN_EVENTS]


def _places(record: StudyRecord) -> list[str]:
    """Where the ranks are, unless there is only one node, and which trials wait for some."""
    cluster = record.study.at_hand or record.study.workload.cluster
    placed = record.result.get("placed") or ()
    is_alone = cluster.num_nodes == 1 and len({place["node"] for place in placed}) <= 1
    shown = {"placed": ()} if is_alone else {}
    return placed_lines({**record.result, "ended_at": record.ended_at, **shown})


def _shape(model: ModelSpec) -> str:
    """The model by name and size: `llama-8b (8.03G parameters, 32 layers)`."""
    return f"{model.name} ({format_count(model.num_parameters)} parameters, {number_of(model.num_layers, 'layer')})"


def _figures_at(result: Result) -> str:
    """The address below which the files of a study's figures are."""
    return f"/api/v1/studies/{result.record.id}/figures"


def _is_large(record: StudyRecord) -> bool:
    return sum(record.trial_counts.values()) > MOST_WAITED_FOR


def _results(service: ServiceState, result: Result, query: TrialQuery) -> dict[str, Any]:
    """The values of the template `study_results.html` beside the study's own. `figures`: None
    before there are any, and empty in a large study until they are drawn."""

    document = api.document(result)
    return {
        "document": document,
        "table": trial_table(result, query),
        "failures": failures_line(result.failed),
        "infeasible": infeasible_line(result.infeasible),
        "figures": _figures_at_once(service, result),
        **_running(service, result),
        **_target(document["target"]),
    }


def _figures_at_once(service: ServiceState, result: Result) -> Markup | str | None:
    if not result.measured and not result.failed:
        return None
    is_drawn = service.views.has_figures(result) or not _is_large(result.record)
    return _figures(service, result) if is_drawn else ""


def _figures(service: ServiceState, result: Result) -> Markup:
    drawn, is_open = service.views.figures(result.record.id), not result.record.status.is_terminal
    return Markup(figures_html(drawn, is_open=is_open, at=_figures_at(result)))


def _running(service: ServiceState, result: Result) -> dict[str, Any]:
    """How far the running trials are, where, and their steps."""
    source, at = service.views.running(result), _figures_at(result)
    figure = running_steps(source)
    files = (
        {suffix: f"{at}/{figure.name}.{suffix}" for suffix in ("csv", "svg")}
        if figure is not None
        else {}
    )
    return {
        "running": steps_left(source),
        "running_places": _places(result.record),
        "running_figure": Markup(figure_html(figure, **files)) if figure is not None else "",
    }


def _target(target: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ranking of a target's configs, as the page shows it."""
    if target is None:
        return {"target_rows": []}
    return {
        "target_heads": HEADS,
        "target_rows": target_rows(target),
        "target_sentences": target_sentences(target),
    }


def _possible_actions(status: StudyStatus, wanted: Wanted) -> list[str]:
    if wanted in (Wanted.STOP, Wanted.CANCEL):
        return ["cancel"]
    return [
        "resume" if Wanted.PAUSE is wanted or status is StudyStatus.PAUSED else "pause",
        "stop",
        "cancel",
    ]


def _weight(text: str) -> float | None:
    """The weight, from 0 to 1; None where none was given. Raises `SpecError`."""
    if not text:
        return None
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= 1.0:
        raise SpecError(
            f"the stability weight must be a number from 0 to 1, but is {text!r}",
            field="stability_weight",
        )
    return weight
