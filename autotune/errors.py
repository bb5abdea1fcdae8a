"""All errors that autotune raises for its callers.

    AutotuneError
    ├── SpecError (ValueError)            the spec or an argument is wrong: unknown key, bad type, impossible value
    ├── ConfigError (ValueError)          a configuration violates a rule
    ├── CatalogError (LookupError)        no such model, GPU, cluster, space, trainer, searcher or runner
    ├── InfeasibleError (ValueError)      no configuration of the space is valid and fits (exit code 1)
    ├── ExportError (ValueError)          a trainer cannot express the configuration
    ├── MissingExtraError (ImportError)   an optional dependency is not installed; the remedy names its extra
    ├── ProgramError (RuntimeError)       the study's program does not work with any config (exit code 1)
    ├── DryRunError (RuntimeError)        the model cannot be dry-run: the message names the operator or line, and the remedy
    ├── RunnerError (RuntimeError)        trials cannot run here: Ray does not start, no ranks, missing data
    │   ├── ClusterTooSmallError          the cluster has fewer ranks than any config needs; unavailable nodes may return
    │   └── JobEndedError                 the scheduler ends the job of the trials; the study continues in the next job
    ├── StoreError (RuntimeError)         the results database failed
    │   ├── StoreUnavailableError         it cannot be reached or written now; a later attempt may succeed (exit code 3)
    │   ├── StoreCorruptError             the file is damaged
    │   └── StoreVersionError             it was written by a newer release
    ├── CallbackError (RuntimeError)      a callback of `autotune.tune` raised; its exception is the cause, the study is paused
    ├── NotFoundError (LookupError)       no such study or trial
    ├── ConflictError (RuntimeError)      the current state forbids it: already ended, another owner, stale lease
    └── ServiceError (RuntimeError)       the service answered with an error
        └── ServiceUnavailableError       it cannot be reached; a later attempt may succeed (exit code 3)

A message has the rule, the values that break it and the remedy. A failed trial raises no error:
failures are data (`autotune.spec.Failure`).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SourcePlace:
    """A position in the text of a spec."""

    file: str
    """its name; empty for a text without a name, such as a request"""
    line: int
    """from 1"""
    column: int
    """in characters, from 1"""
    excerpt: str
    """the line with the mistake and the line before it, with their numbers and carets under the
    mistake; empty if the text is not available"""

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}:{self.column}"
            if self.file
            else f"line {self.line}, column {self.column}"
        )


class AutotuneError(Exception):
    """Base of all errors. `message` has the rule and the values, `remedy` says what to do, `field`
    is the key in the spec.

    `place` is the position of the field in the text of the spec, and `others` are the other errors
    in the same spec, if known.
    """

    def __init__(
        self, message: str, *, remedy: str = "", field: str = "", place: SourcePlace | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.field = field
        self.place = place
        self.others: tuple[AutotuneError, ...] = ()

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        # the message begins with the field already
        named = self.message.split(maxsplit=1)[:1] == [self.field]
        where = f"{self.field}: " if self.field and not named else ""
        return f"{place}{where}{self.message}" + (f"; {self.remedy}" if self.remedy else "")

    def by_line(self) -> list[AutotuneError]:
        """This error and the others in the order of the text; those without a position come last."""
        errors = (self, *self.others)
        placed = sorted((error for error in errors if error.place), key=attrgetter("place"))
        return [*placed, *(error for error in errors if not error.place)]

    def document(self) -> dict[str, Any]:
        """The error in the format of the public contract: {kind, message, field, remedy}, plus
        `problems` for errors in a text.

        `problems` lists every mistake that was found, this one first: {message, field, remedy,
        file, line, column}. Lines and columns are counted from 1; both are None, and file is empty,
        if an error has no position, such as a missing key.
        """
        body: dict[str, Any] = {
            "kind": self.kind,
            "message": self.message,
            "field": self.field,
            "remedy": self.remedy,
        }
        errors = (self, *self.others)
        if self.others or self.place:
            body["problems"] = [
                {
                    "message": error.message,
                    "field": error.field,
                    "remedy": error.remedy,
                    "file": error.place.file if error.place else "",
                    "line": error.place.line if error.place else None,
                    "column": error.place.column if error.place else None,
                }
                for error in errors
            ]
        return body

    @property
    def kind(self) -> str:
        """The error's kind in JSON documents: `SpecError` -> `spec`, `StoreVersionError` ->
        `store_version`."""
        name = type(self).__name__.removesuffix("Error")
        return "".join(
            "_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name)
        )


class SpecError(AutotuneError, ValueError):
    """The spec or an argument is wrong."""


class ConfigError(AutotuneError, ValueError):
    """A configuration violates a rule."""


class CatalogError(AutotuneError, LookupError):
    """There is no entry with this name."""


class InfeasibleError(AutotuneError, ValueError):
    """No configuration of the space is valid and fits."""

    brief: str = ""
    """the rule that excludes the most combinations, as text"""


class ExportError(AutotuneError, ValueError):
    """The trainer cannot express the configuration."""


class MissingExtraError(AutotuneError, ImportError):
    """An optional dependency is not installed."""


class RunnerError(AutotuneError, RuntimeError):
    """Trials cannot run here."""


class ClusterTooSmallError(RunnerError):
    """The cluster has fewer ranks than any config needs, or no GPU; unavailable nodes may
    return."""


class JobEndedError(RunnerError):
    """The scheduler ends the job of the trials; the study continues in the next job."""


class DryRunError(AutotuneError, RuntimeError):
    """The model's code cannot be built or dry-run."""


class ProgramError(AutotuneError, RuntimeError):
    """The study's program does not work, whatever the config."""


class StoreError(AutotuneError, RuntimeError):
    """The results database failed."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached or written now."""


class StoreCorruptError(StoreError):
    """The database file is damaged."""


class StoreVersionError(StoreError):
    """The database was written by a newer release."""


class CallbackError(AutotuneError, RuntimeError):
    """A callback of `autotune.tune` raised an exception (its `__cause__`); the study is paused."""


class NotFoundError(AutotuneError, LookupError):
    """No such study or trial."""


class ConflictError(AutotuneError, RuntimeError):
    """The current state forbids the operation."""


class ServiceError(AutotuneError, RuntimeError):
    """The service answered with an error."""


class ServiceUnavailableError(ServiceError):
    """The service cannot be reached now."""
