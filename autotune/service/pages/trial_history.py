"""The events of one trial, found without reading the history of the whole study.

Trials are asked for in the order of their numbers, so the event that asked for one is found by halves; its other events follow until it ends. At most
`MOST_EVENTS` are read from there on: of a trial beside which more happened, later events are left out.
"""

from __future__ import annotations

from autotune.ports import EventKind, HistoryEvent, StudyReader

PAGE, MOST_EVENTS = 200, 2000


def events_of_trial(store: StudyReader, study_id: str, number: int) -> list[HistoryEvent]:
    """The events of the trial, in order. Raises `NotFoundError`."""
    low, high = 0, store.revision(study_id).events
    while high - low > PAGE:
        middle = (low + high) // 2
        asked = _next_asked(store, study_id, middle, high)
        if asked is not None and asked.data["number"] <= number:
            low = asked.sequence - 1
        else:
            high = middle
    found: list[HistoryEvent] = []
    after, last = low, low + MOST_EVENTS
    while after < last and (part := store.events(study_id, after=after, limit=PAGE)):
        after = part[-1].sequence
        found += [event for event in part if event.data.get("number") == number]
        if any(event.kind == EventKind.TRIAL_ENDED for event in found):
            break
    return found


def _next_asked(store: StudyReader, study_id: str, after: int, until: int) -> HistoryEvent | None:
    """The first event after that number, and not after `until`, that asked for a trial."""
    while after < until and (part := store.events(study_id, after=after, limit=min(PAGE, until - after))):
        after = part[-1].sequence
        if (asked := next((event for event in part if event.kind == EventKind.TRIAL_ASKED), None)) is not None:
            return asked
    return None
