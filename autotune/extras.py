"""Optional dependencies: which extra of the package installs a module, and the error that names the
extra if the module is missing.

    native       torch                                          trials of the native trainer on this machine, `autotune calibrate`
    ray          ray                                            the `ray` runner, `autotune serve` with its own Ray cluster
    service      fastapi, uvicorn, jinja2, prometheus_client    `autotune serve`
    postgresql   psycopg                                        stores at postgresql:// addresses
    parquet      pyarrow                                        `autotune store export --format parquet`
    optuna       optuna, cmaes                                  the searchers `optuna:*`
    gpu          pynvml                                         readings of GPU utilization and clocks
    mcp          mcp                                            `autotune mcp`

Commands, plan, estimate, the searchers, simulated trials, stores in SQLite and the client work
without any of them. Code that needs an extra calls `require_extra` before it starts anything. If a
plug-in fails with an `ImportError`, `missing_extra` tells whether an extra would install the
module.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from autotune.errors import MissingExtraError

DISTRIBUTION: Final = "autotune-parallel"
"""the package's name for pip; `autotune` on PyPI is another project"""
FORMERLY: Final = "autotune"
"""its name in environments with a checkout from before the first release"""

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "native": ("torch",),
    "ray": ("ray",),
    "service": ("fastapi", "uvicorn", "jinja2", "prometheus_client"),
    "postgresql": ("psycopg",),
    "parquet": ("pyarrow",),
    "optuna": ("optuna", "cmaes"),
    "gpu": ("pynvml",),
    "mcp": ("mcp",),
}
"""the top-level modules that each extra installs"""


def require_extra(extra: str, needed_by: str) -> None:
    """Raise `MissingExtraError` unless all modules of the extra are installed. Does not import them.

    `needed_by`: the beginning of the message, such as "the 'local' runner".
    """
    for module in MODULES[extra]:
        if not is_installed(module):
            raise _error(module, extra, needed_by)


def require_extras(extras: Sequence[str], needed_by: str, *, or_else: str = "") -> None:
    """`require_extra` for several extras. The error names all missing modules, and the remedy
    installs their extras with one command. `or_else`: appended to the remedy."""
    missing: dict[str, str] = {}
    for extra in extras:
        absent = [module for module in MODULES[extra] if not is_installed(module)]
        if absent:
            missing[extra] = absent[0]
    if missing:
        verb, pronoun = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise MissingExtraError(
            f"{needed_by} needs {' and '.join(missing.values())}, which {verb} not installed",
            remedy=f"install {pronoun} with: {install_command(','.join(missing))}{or_else}",
        )


def missing_extra(error: BaseException, needed_by: str) -> MissingExtraError | None:
    """The `MissingExtraError` for an `error` about a missing module of an extra; None for any other
    error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    for extra, modules in MODULES.items():
        if module in modules and not is_installed(module):
            return _error(module, extra, needed_by)
    return None


def is_installed(module: str) -> bool:
    """Whether the top-level module can be found."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # raised by an import hook
        return False


def install_command(extra: str) -> str:
    """The command that installs the extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def reinstall_command() -> str:
    """The command that reinstalls this package: from its checkout, or else from the index."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install --no-deps --editable {shlex.quote(str(checkout))}"
    return f"pip install --no-deps --force-reinstall {DISTRIBUTION}"


def is_own(distribution: metadata.Distribution) -> bool:
    """Whether an installed distribution is this package, by its name and its command's entry
    point."""
    names = (DISTRIBUTION, FORMERLY)
    return distribution.name in names and any(
        e.value == "autotune.cli:main" for e in distribution.entry_points
    )


def own_requirements() -> tuple[str, ...]:
    """The requirements in the installed package's metadata; empty if it is not installed."""
    distributions = (
        distribution
        for name in (DISTRIBUTION, FORMERLY)
        for distribution in metadata.distributions(name=name)
    )
    return next(
        (
            tuple(distribution.requires or ())
            for distribution in distributions
            if is_own(distribution)
        ),
        (),
    )


def _error(module: str, extra: str, needed_by: str) -> MissingExtraError:
    return MissingExtraError(
        f"{needed_by} needs {module}, which is not installed",
        remedy=f"install it with: {install_command(extra)}",
    )
