"""The errors that a caller can meet, and nothing else.

    AutotuneError
    ├── SpecError (ValueError)            what was asked is wrong: unknown key, bad type, impossible value
    ├── ConfigError (ValueError)          a configuration breaks a law
    ├── CatalogError (LookupError)        no such model, GPU, cluster, space, trainer, searcher or runner
    ├── InfeasibleError (ValueError)      no configuration of the space is legal or fits: a proper answer, exit code 1
    ├── ExportError (ValueError)          a trainer cannot express the configuration
    ├── MissingExtraError (ImportError)   an optional dependency is not installed; the remedy names the extra that brings it
    ├── RunnerError (RuntimeError)        trials cannot be run here: Ray not startable, no ranks, no such data
    ├── StoreError (RuntimeError)         the results database
    │   ├── StoreUnavailableError         it cannot be reached or written now; trying again may help
    │   ├── StoreCorruptError             the file is damaged
    │   └── StoreVersionError             it was written by a newer release
    ├── NotFoundError (LookupError)       no such study or trial
    ├── ConflictError (RuntimeError)      the state forbids it: already terminal, another owner, stale lease
    └── ServiceError (RuntimeError)       the service answered with an error, or could not be reached

A message says the law, the values that break it and the remedy. A trial that fails is no error: failures are data
(`autotune.spec.Failure`).
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Root of all errors; `message` says the law and the values, `remedy` what to do, `field` where in the spec."""

    def __init__(self, message: str, *, remedy: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.field = field

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}" + (f"; {self.remedy}" if self.remedy else "")

    @property
    def kind(self) -> str:
        """The error's name on the wire: `SpecError` -> `spec`, `StoreVersionError` -> `store_version`."""
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
