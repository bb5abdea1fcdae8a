"""What was last told of each study: many watch the same few, and most of the time nothing about them has changed.

An answer is told again for `FRESH_S` without asking anybody. After that the study's revision is asked for (two indexed rows), and only when it
moved is the answer worked out anew, once for all who wait for it. What is done through this service is seen by whoever asks after it
(`doubt`); what other processes do, `FRESH_S` later at most. Answers carry an ETag (RFC 9110, section 8.8.3), so that who has one already gets 304.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune.ports import Revision, StudyReader

FRESH_S = 0.1
MOST_BYTES = 64 << 20
"""of answers that are kept; the one that was asked for longest ago goes first"""
_HEADERS = {"Cache-Control": "private, no-cache"}

Question = tuple[str, str]
"""(what is asked, the study as the asker calls it)"""


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """An answer, and what the study was when it was made."""

    revision: Revision
    body: bytes
    etag: str

    def response(self, known: str | None) -> Response:
        """The answer for someone whose If-None-Match header is `known`: 304 when that is this answer."""
        headers = {**_HEADERS, "ETag": self.etag}
        if known and any(tag.strip().removeprefix("W/") in (self.etag, "*") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the store that is under way."""

    began_s: float
    task: asyncio.Task[CachedResponse]


class ResponseCache:
    """Belongs to one event loop; only `doubt` may be called from threads."""

    def __init__(self, store: StudyReader, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._kept: OrderedDict[Question, tuple[CachedResponse, float]] = OrderedDict()
        self._looks: dict[Question, _Look] = {}
        self._bytes = 0
        self._doubted_s = float("-inf")

    async def of(self, study: str, what: str, make: Callable[[str], bytes]) -> CachedResponse:
        """The answer to `what` about the study (id, name or start of the id); `make(id)` works it out. Raises the store's errors."""
        question = (what, study)
        kept, asked_s = self._kept.get(question, (None, float("-inf")))
        if kept is not None and asked_s > self._doubted_s and self._monotonic() - asked_s < FRESH_S:
            return kept
        look = self._looks.get(question)
        if look is None or look.began_s <= self._doubted_s:
            look = _Look(self._monotonic(), asyncio.create_task(self._answer(question, kept, make)))
            self._looks[question] = look
            look.task.add_done_callback(_hear)
        return await asyncio.shield(look.task)  # who hangs up does not take the answer from the others

    def doubt(self) -> None:
        """Something was changed just now: nothing of before is told again unasked."""
        self._doubted_s = self._monotonic()

    async def _answer(
        self, question: Question, kept: CachedResponse | None, make: Callable[[str], bytes]
    ) -> CachedResponse:
        began_s = self._monotonic()
        try:
            told = await run_in_threadpool(self._look, question[1], kept, make)
            self._keep(question, told, began_s)
            return told
        finally:
            if (look := self._looks.get(question)) is not None and look.task is asyncio.current_task():
                del self._looks[question]

    def _look(self, study: str, kept: CachedResponse | None, make: Callable[[str], bytes]) -> CachedResponse:
        revision = self._store.revision(
            study
        )  # before the answer, so that an answer is never taken for newer than it is
        if kept is not None and kept.revision == revision:
            return kept
        body = make(revision.id)
        return CachedResponse(revision, body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')

    def _keep(self, question: Question, told: CachedResponse, began_s: float) -> None:
        before, _ = self._kept.pop(question, (None, 0.0))
        self._bytes += len(told.body) - (len(before.body) if before else 0)
        self._kept[question] = (told, began_s)
        while self._bytes > MOST_BYTES:
            _, (oldest, _) = self._kept.popitem(last=False)
            self._bytes -= len(oldest.body)


def _hear(task: asyncio.Task[CachedResponse]) -> None:
    """Takes note of an error, for all askers may have gone."""
    if not task.cancelled():
        task.exception()
