"""All errors that autotune raises for its callers.

    AutotuneError
    ├── SpecError (ValueError)            what was asked is wrong: unknown key, bad type, impossible value
    ├── ConfigError (ValueError)          a configuration breaks a law
    ├── CatalogError (LookupError)        no such model, GPU, cluster, space, trainer, searcher or runner
    ├── InfeasibleError (ValueError)      no configuration of the space is legal or fits (a valid answer, exit code 1)
    ├── ExportError (ValueError)          a trainer cannot express the configuration
    ├── MissingExtraError (ImportError)   an optional dependency is not installed; the remedy names the extra that brings it
    ├── ProgramError (RuntimeError)       the study's program does not work with any config (exit code 1)
    ├── RunnerError (RuntimeError)        trials cannot run here: Ray does not start, no ranks, missing data
    ├── StoreError (RuntimeError)         the results database failed
    │   ├── StoreUnavailableError         it cannot be reached or written now; a later attempt may succeed
    │   ├── StoreCorruptError             the file is damaged
    │   └── StoreVersionError             it was written by a newer release
    ├── NotFoundError (LookupError)       no such study or trial
    ├── ConflictError (RuntimeError)      the present state forbids it: already ended, another owner, stale lease
    └── ServiceError (RuntimeError)       the service answered with an error, or could not be reached

A message names the law, the values that break it and the remedy. A failed trial raises no error: failures are data (`autotune.spec.Failure`).
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Root of all errors. `message` names the law and the values, `remedy` says what to do, `field` is the key in the spec."""

    def __init__(self, message: str, *, remedy: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.field = field

    def __str__(self) -> str:
        named = self.message.split(maxsplit=1)[:1] == [self.field]  # the message begins with the field already
        where = f"{self.field}: " if self.field and not named else ""
        return f"{where}{self.message}" + (f"; {self.remedy}" if self.remedy else "")

    @property
    def kind(self) -> str:
        """The error's kind in JSON documents: `SpecError` -> `spec`, `StoreVersionError` -> `store_version`."""
        name = type(self).__name__.removesuffix("Error")
        return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


class SpecError(AutotuneError, ValueError):
    """What was asked is wrong."""


class ConfigError(AutotuneError, ValueError):
    """A configuration breaks a law."""


class CatalogError(AutotuneError, LookupError):
    """No entry of that name."""


class InfeasibleError(AutotuneError, ValueError):
    """Nothing in the space is legal or fits."""


class ExportError(AutotuneError, ValueError):
    """The trainer cannot express the configuration."""


class MissingExtraError(AutotuneError, ImportError):
    """An optional dependency is not installed."""


class RunnerError(AutotuneError, RuntimeError):
    """Trials cannot be run here."""


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


class NotFoundError(AutotuneError, LookupError):
    """No such study or trial."""


class ConflictError(AutotuneError, RuntimeError):
    """The present state forbids the operation."""


class ServiceError(AutotuneError, RuntimeError):
    """The service answered with an error, or could not be reached."""
