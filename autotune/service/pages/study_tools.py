"""What a study's page offers beside its figures: its place in the queue, tags, notes, and what can be done with it."""

from __future__ import annotations

from typing import Any

from autotune.ports import StudyRecord
from autotune.results.answers import waiting_words
from autotune.service.http.access import Caller
from autotune.service.http.service_state import ServiceState
from autotune.spec import StudyStatus


def tools_of(service: ServiceState, caller: Caller, record: StudyRecord) -> dict[str, Any]:
    """The values of the template `study_tools.html`. Of what the caller may not do nothing is offered."""
    writes = caller.allows("submit")
    mine = writes and caller.owns(record)
    notes = [
        {**note.to_dict(), "removable": mine or (writes and bool(caller.owner) and note.author == caller.owner)}
        for note in service.store.annotations.notes(record.id)
    ]
    return {
        "mine": mine,
        "writes": writes,
        "notes": notes,
        "tags": record.tags,
        "ended": record.status.is_terminal,
        "queue": queue_line(service, record),
    }


def queue_line(service: ServiceState, record: StudyRecord) -> str:
    """Where the study stands in the queue, in a sentence; empty when it does not wait."""
    if record.status is not StudyStatus.QUEUED:
        return ""
    behind = service.waiting_behind(record.id)
    place = f"It {waiting_words(behind)}" if behind else "It is about to start"
    supervisor = service.supervisor
    if supervisor is None:
        return f"{place}. This service starts no studies: run `autotune serve` on its store."
    running = len(supervisor.running)
    return f"{place}; {running} {'runs' if running == 1 else 'run'} now, and this service runs at most {service.options.max_studies} at once."
