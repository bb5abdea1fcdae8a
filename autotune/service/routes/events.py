"""A study's history: a page as JSON, or a live stream of server-sent events (`Accept:
text/event-stream`).

The id of each event is its sequence number, so that a client whose connection broke continues with
`Last-Event-ID`. After the study's last event, the stream sends an event `end` and closes. It closes
without one if the caller's token is revoked or expires.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune import api
from autotune.errors import AutotuneError, NotFoundError
from autotune.results.masking import masked_events
from autotune.service.http.access import Caller
from autotune.service.http.error_responses import StrictJSONResponse
from autotune.service.http.fair_use import SlottedStream
from autotune.service.http.middleware import WITHOUT_BODY
from autotune.service.http.service_state import (
    STREAM_POLL_S,
    Limit,
    Reader,
    ServiceState,
    StudyId,
    TheService,
)
from autotune.service.routes.response_models import EventList, responses
from autotune.spec.plain import finite

router = APIRouter(tags=["studies"])

BEAT_S = 15.0
"""seconds without events after which a comment is sent, so that proxies keep the connection open"""
STREAM = "text/event-stream"
PAGE = 1000

_RESPONSES = responses(404, model=EventList)
_RESPONSES[200]["content"] = {STREAM: {"schema": {"type": "string"}}}


@router.get("/studies/{study_id}/events", responses=_RESPONSES)
async def events(
    request: Request,
    study_id: StudyId,
    service: TheService,
    caller: Reader,
    after: Annotated[
        int, Query(ge=0, le=1 << 60, description="only events with a larger sequence number")
    ] = 0,
    limit: Limit = PAGE,
    last_event_id: Annotated[
        str | None, Header(description="for streams: the same as `after`")
    ] = None,
) -> Response:
    """Read events after a sequence number, or follow them as a live stream."""
    if STREAM not in request.headers.get("accept", ""):
        documents = await run_in_threadpool(
            api.event_documents, service.store, study_id, after=after, limit=limit
        )
        return StrictJSONResponse({"events": documents})
    record = await run_in_threadpool(service.store.study, study_id)
    if request.scope.get(WITHOUT_BODY):
        return Response(media_type=STREAM)
    slots = service.stream_slots
    slots.take(caller.name, is_owner=caller.owns(record))
    if (
        last_event_id
        and last_event_id.isascii()
        and last_event_id.isdigit()
        and len(last_event_id) < 18
    ):
        after = max(after, int(last_event_id))
    return SlottedStream(
        _stream(service, caller, record.id, after),
        slots=slots,
        caller=caller.name,
        media_type=STREAM,
    )


async def _stream(
    service: ServiceState, caller: Caller, study: str, after: int
) -> AsyncIterator[str]:
    silent_s, sent_revision = 0.0, None
    yield ": open\n\n"
    while not service.closing.is_set():
        events, record = [], None
        try:
            if not await service.gate.is_still_valid(caller):
                return  # if the client connects again, it gets the error
            revision = await service.revisions.read(study)
            if revision != sent_revision:
                # read the study before its events: a study is terminal only after its last event
                record = await run_in_threadpool(service.store.study, study)
                events = masked_events(
                    record,
                    await run_in_threadpool(service.store.events, study, after=after, limit=PAGE),
                )
                sent_revision = None if events else revision
        except (
            NotFoundError
        ):  # the study was deleted; if the client connects again, it gets the error
            return
        except AutotuneError:  # the store cannot be reached; wait until it can
            pass
        for event in events:
            after = event.sequence
            yield f"id: {after}\nevent: {event.kind}\ndata: {json.dumps(finite(event.to_dict()))}\n\n"
        if events:
            silent_s = 0.0
            continue
        if record is not None and record.status.is_terminal:
            yield f"event: end\ndata: {json.dumps({'status': str(record.status)})}\n\n"
            return
        await asyncio.sleep(STREAM_POLL_S)
        silent_s += STREAM_POLL_S
        if silent_s >= BEAT_S:
            silent_s = 0.0
            yield ": still here\n\n"
