"""An observed run: a training run that users started themselves, with its measurements. An observed
run is not a trial: its config was not chosen by a search, and it never wins.

Users can add notes and tags to a study. Tags are for finding studies.

A tag is a word without spaces, so that a list of tags can be typed in one line. Tags are compared
exactly as written, including case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from autotune.errors import SpecError
from autotune.spec.config import ParallelConfig
from autotune.spec.estimate import Estimate
from autotune.spec.plain import Plain, read_fields
from autotune.spec.runs.measurement import Measurement
from autotune.spec.runs.trial import Failure, Trial, TrialStatus
from autotune.spec.workload import Workload

OBSERVED = "observed"
"""kind of an observed run, as opposed to a trial"""


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    INTERRUPTED = "INTERRUPTED"
    """ended by a user"""

    @classmethod
    def of(cls, *, is_interrupted: bool, has_failed: bool) -> Outcome:
        """Return the outcome of a run that has ended; an interrupted run ends with an error too."""
        if is_interrupted:
            return cls.INTERRUPTED
        return cls.FAILED if has_failed else cls.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun(Plain):
    """A training run that a user started. Unobserved values are None."""

    id: str = ""
    """id assigned by the store"""
    program: str
    """the program that trained: its file, or the trainer's name"""
    command: tuple[str, ...] = ()
    """the run's command, without secrets; empty if a callback in the program observed the run"""
    outcome: Outcome = Outcome.COMPLETED
    """how the run ended"""
    exit_code: int | None = None
    """exit status, negative for a signal; None if a callback in the program observed the run"""
    workload: Workload | None = None
    """the workload that the run trained"""
    config: ParallelConfig | None = None
    """the config of the run"""
    estimate: Estimate | None = None
    """the prediction before the run started"""
    measurement: Measurement | None = None
    """measurements of the run's steps; step times are empty if no step was observed"""
    failure: Failure | None = None
    """why the run failed, with the evidence; if the run did not fail, that it ran out of memory and
    continued"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """versions of Python and of the training libraries that the run could import"""
    host: str = ""
    """name of the machine"""
    owner: str = ""
    """user who started the run"""
    started_at: datetime
    """UTC"""
    ended_at: datetime
    """UTC"""

    @property
    def all_versions(self) -> Mapping[str, str]:
        """All known versions; versions that the run's own processes reported take precedence."""
        return {**self.versions, **(self.measurement.versions if self.measurement else {})}

    @property
    def step_time_s(self) -> float | None:
        """Median step time in seconds; None if no step was observed."""
        return (
            self.measurement.step_time_s
            if self.measurement and self.measurement.step_times_s
            else None
        )

    def as_trial(self) -> Trial | None:
        """Return the run as a measured trial that studies can learn from; None if workload, config
        or steps are unknown, or if the program left the config."""
        if self.failure is not None and self.outcome is not Outcome.FAILED:
            return None
        if self.workload is None or self.config is None or self.step_time_s is None:
            return None
        return Trial(
            config=self.config,
            status=TrialStatus.STOPPED,
            estimate=self.estimate,
            measurement=self.measurement,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"kind": OBSERVED, **Plain.to_dict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ObservedRun:
        """Return the run that `to_dict` wrote."""
        return read_fields(cls, {name: value for name, value in values.items() if name != "kind"})


MAX_TAGS = 20
"""maximum number of tags of a study"""
MAX_NOTE = 10_000
"""maximum number of characters in a note"""
MAX_NOTES = 200
"""maximum number of notes on a study"""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,49}")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags, each once, in alphabetical order. Raises `SpecError` for an invalid tag."""
    distinct = sorted(set(tags))
    for tag in distinct:
        if not _TAG.fullmatch(tag):
            raise SpecError(
                f"a tag must have 1 to 50 letters, digits or any of _ . : / + -, and begin with a "
                f"letter or digit, but one is {tag!r:.80}",
                remedy="remove spaces and other characters",
                field="tags",
            )
    return tuple(distinct)


def check_tag_count(count: int) -> None:
    """Raise `SpecError` if a study would have too many tags."""
    if count > MAX_TAGS:
        raise SpecError(
            f"a study may have at most {MAX_TAGS} tags, but this one would have {count}",
            remedy="remove one first",
            field="tags",
        )


def checked_note(text: str, *, notes: int) -> str:
    """Return the text of a new note, without surrounding whitespace. `notes`: number of notes that
    the study already has. Raises `SpecError`."""
    text = text.replace("\r\n", "\n").strip()
    if not 0 < len(text) <= MAX_NOTE:
        raise SpecError(
            f"a note must have 1 to {MAX_NOTE:,} characters, but this one has {len(text):,}",
            remedy="shorten the note, or write several notes" if text else "write some text",
            field="text",
        )
    if notes >= MAX_NOTES:
        raise SpecError(
            f"a study has at most {MAX_NOTES} notes", remedy="remove one first", field="text"
        )
    return text
