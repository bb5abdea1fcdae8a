"""A study's page, its report, the buttons that control it, and its configs in another order."""

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
from autotune.report.notes import infeasible_line, placement_lines
from autotune.report.reward_tables import cost_label
from autotune.report.target_text import HEADS, target_rows, target_sentences
from autotune.report.terminal import format_count
from autotune.results.answers import is_left, queue_position_text
from autotune.results.masking import masked_events
from autotune.results.result import Result
from autotune.service.http.access import Caller
from autotune.service.http.service_state import ServiceState, TheService
from autotune.service.pages.page_requests import (
    REFRESH_S,
    Changer,
    OwnForm,
    Visitor,
    message_in,
    redirect_after,
)
from autotune.service.pages.rendering import as_html, render
from autotune.service.pages.trial_table import TrialQuery, trial_table
from autotune.service.routes.studies import Action, act_on_study
from autotune.spec import ModelSpec, StudyStatus, TrialStatus, Wanted, number_of
from autotune.spec.checks import one_of
from autotune.spec.study import METRICS

router = APIRouter()

MAX_EVENTS = 40
"""maximum number of events of a study's history on its page, the newest first"""
SEARCHED_EVENTS = 400
"""number of newest events to search for events to show, because many events are only for
programs"""
MAX_IMMEDIATE_TRIALS = 1000
"""largest number of trials for which a page waits for values computed from all trials: 0.1 s for
its results, 1 s for its figures"""
MAX_CONFIGS = 50
"""maximum number of configs on the page with another order"""
MEASURED = (TrialStatus.COMPLETED, TrialStatus.STOPPED)
"""statuses of measured trials"""
WHOLE_PAGE = "whole"
"""query parameter with which a browser without scripts requests the whole page at once"""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'"


@router.get("/studies/{study_id}")
def study(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """Show a study: best config, trials, newest events, and buttons for the actions that are
    possible now.

    For a large study whose result is not in memory, the page is made without reading any trial, and
    then fetches the results.
    """
    query = TrialQuery.of(request.query_params)
    record = service.store.study(study_id)
    fetches_results = (
        _is_large(record)
        and WHOLE_PAGE not in request.query_params
        and not service.views.is_current(record.id)
    )
    results = {} if fetches_results else _results(service, service.views.result(record.id), query)
    tools, status = tools_of(service, caller, record), record.status
    events = masked_events(
        record, service.store.events(record.id, limit=SEARCHED_EVENTS, newest=True)
    )
    document = api.study_document(record, is_left=is_left(service.store, record))
    results_url = f"/studies/{record.id}/results{query.address(page=query.page)}".partition("#")[0]
    return render(
        "study.html",
        caller=caller,
        said=message_in(request),
        tools=tools,
        study=document,
        shape=_model_text(record.study.workload.model),
        trials=sum(record.trial_counts.values()),
        late=results_url if fetches_results else "",
        whole=f"?{request.url.include_query_params(**{WHOLE_PAGE: 1}).query}",
        **results,
        scripted=fetches_results or results["figures"] == "",
        placed=_placement_lines(record) if status.is_terminal else [],
        actions=_possible_actions(status, record.wanted)
        if tools["mine"] and not status.is_terminal
        else [],
        history=_history(events),
        refresh=0 if status.is_terminal else REFRESH_S,
        events_url=f"/api/v1/studies/{record.id}/events?after={events[-1].sequence if events else 0}",
    )


@router.get("/studies/{study_id}/results")
def results(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """Show the part of a study's page that is computed from all trials. The page of a large study
    fetches it."""
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
    """Show the figures of a study's page. The page of a large study fetches them."""
    return as_html(_figures(service, service.views.result(study_id)))


@router.get("/studies/{study_id}/running")
def running(study_id: str, service: TheService, caller: Visitor) -> Response:
    """Show the running trials of a study's page, which change without a new event."""
    result = service.views.result(study_id)
    return render(
        "running_trials.html",
        caller=caller,
        study={"id": result.record.id},
        **_running(service, result),
    )


@router.get("/studies/{study_id}/report")
def report(study_id: str, service: TheService, caller: Visitor) -> Response:
    """Show the study's report with figures."""
    from autotune.report.page import report_page

    result = service.views.result(study_id)
    text = report_page(result, service.views.figures(result.record.id))
    return as_html(text, headers={"Content-Security-Policy": REPORT_POLICY})


@router.post("/studies/{study_id}/act")
def act(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Perform the action of a button on the study's page."""
    action = one_of("action", form.get("action", ""), [str(a) for a in Action])
    record = act_on_study(service, caller, study_id, action)
    return redirect_after(f"/studies/{record.id}", action)


@router.get("/studies/{study_id}/ranking")
async def ranking(
    study_id: str, request: Request, service: TheService, caller: Visitor
) -> Response:
    """Show the configs in the requested order. Nothing is run again."""
    order = {
        name: request.query_params.get(name, "")[:40]
        for name in ("metric", "stability_weight", "pareto")
    }

    def load() -> dict[str, Any]:
        return api.ranking_document(
            service.views.result(study_id),
            top=MAX_CONFIGS,
            pareto=bool(order["pareto"]),
            metric=order["metric"] or None,
            stability_weight=_weight(order["stability_weight"]),
        )

    document = await service.run_heavy(caller, load)
    return render(
        "ranking.html",
        caller=caller,
        asked=order,
        metrics=METRICS,
        cost=lambda merits: cost_label(merits["cost_of_million_tokens"], merits["cost_unit"]),
        **document,
    )


def tools_of(service: ServiceState, caller: Caller, record: StudyRecord) -> dict[str, Any]:
    """Return the values of the template `study_tools.html`, without actions that the caller may not
    do."""
    may_write = caller.allows("submit")
    may_control = may_write and caller.owns(record)
    notes = [
        {
            **note.to_dict(),
            "removable": may_control
            or (may_write and bool(caller.owner) and note.author == caller.owner),
        }
        for note in service.store.annotations.notes(record.id)
    ]
    return {
        "mine": may_control,
        "writes": may_write,
        "notes": notes,
        "tags": record.tags,
        "is_measured": any(record.trial_counts.get(status) for status in MEASURED),
        "ended": record.status.is_terminal,
        "queue": queue_line(service, record),
    }


def queue_line(service: ServiceState, record: StudyRecord) -> str:
    """Return the sentence on the study's place in the queue; an empty text if it does not wait."""
    if record.status is not StudyStatus.QUEUED:
        return ""
    ahead = service.queue_position(record.id)
    position = f"It {queue_position_text(ahead)}" if ahead else "It is about to start"
    supervisor = service.supervisor
    if supervisor is None:
        return f"{position}. This service starts no studies; run `autotune serve` on its store."
    return f"{position}. This service is running {len(supervisor.running)} of at most {number_of(service.options.max_studies, 'study', 'studies')}."


def _history(events: Sequence[HistoryEvent]) -> list[tuple[str, str]]:
    """Return (time, sentence) of the newest events that are shown to people, the newest first."""
    documents = [event.to_dict() for event in reversed(events)]
    lines = [(str(event["at"]), history_line(event)) for event in documents]
    return [(at, line) for at, line in lines if line][:MAX_EVENTS]


def _placement_lines(record: StudyRecord) -> list[str]:
    """Return where the study's ranks are, if there are several nodes, and which trials wait for
    ranks."""
    cluster = record.study.at_hand or record.study.workload.cluster
    placed = record.result.get("placed") or ()
    is_single_node = cluster.num_nodes == 1 and len({place["node"] for place in placed}) <= 1
    overrides = {"placed": ()} if is_single_node else {}
    return placement_lines({**record.result, "ended_at": record.ended_at, **overrides})


def _model_text(model: ModelSpec) -> str:
    """Return a model's name and size, e.g. `llama-8b (8.03G parameters, 32 layers)`."""
    return f"{model.name} ({format_count(model.num_parameters)} parameters, {number_of(model.num_layers, 'layer')})"


def _figures_url(result: Result) -> str:
    """Return the address below which the files of a study's figures are."""
    return f"/api/v1/studies/{result.record.id}/figures"


def _is_large(record: StudyRecord) -> bool:
    return sum(record.trial_counts.values()) > MAX_IMMEDIATE_TRIALS


def _results(service: ServiceState, result: Result, query: TrialQuery) -> dict[str, Any]:
    """Return the values of the template `study_results.html`, without the study's own. `figures`:
    None before there are any; empty for a large study until they are drawn."""

    document = api.document(result)
    return {
        "document": document,
        "table": trial_table(result, query),
        "failures": failures_line(result.failed),
        "infeasible": infeasible_line(result.infeasible),
        "figures": _drawn_figures(service, result),
        **_running(service, result),
        **_target(document["target"]),
    }


def _drawn_figures(service: ServiceState, result: Result) -> Markup | str | None:
    if not result.measured and not result.failed:
        return None
    is_drawn = service.views.has_figures(result) or not _is_large(result.record)
    return _figures(service, result) if is_drawn else ""


def _figures(service: ServiceState, result: Result) -> Markup:
    drawn, is_open = service.views.figures(result.record.id), not result.record.status.is_terminal
    return Markup(figures_html(drawn, is_open=is_open, base_url=_figures_url(result)))


def _running(service: ServiceState, result: Result) -> dict[str, Any]:
    """Return the progress, the places and the figure of the running trials."""
    source, url = service.views.running(result), _figures_url(result)
    figure = running_steps(source)
    files = (
        {suffix: f"{url}/{figure.name}.{suffix}" for suffix in ("csv", "svg")}
        if figure is not None
        else {}
    )
    return {
        "running": steps_left(source),
        "running_places": _placement_lines(result.record),
        "running_figure": Markup(figure_html(figure, **files)) if figure is not None else "",
    }


def _target(target: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a target's ranking for the template."""
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
    """Parse a stability weight from 0 to 1; None for an empty text. Raises `SpecError`."""
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
