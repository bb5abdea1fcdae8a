"""Optional dependencies: which extra of the package brings a module, and the error that names the
extra when the module is missing.

    native       torch                                          trials of the native trainer on this machine, `autotune calibrate`
    ray          ray                                            the `ray` runner, `autotune serve` with its own Ray cluster
    service      fastapi, uvicorn, jinja2, prometheus_client    `autotune serve`
    postgresql   psycopg                                        stores at postgresql:// addresses
    parquet      pyarrow                                        `autotune store export --format parquet`
    optuna       optuna, cmaes                                  the searchers `optuna:*`
    gpu          pynvml                                         readings of GPU utilization and clocks; left out without it
    mcp          mcp                                            `autotune mcp`

The package itself needs none of them: commands, plan, estimate, the searchers, simulated trials,
stores in SQLite and the client work without. Code that needs an extra calls `require_extra` before
it starts anything. A plug-in that imports more than is here fails with an `ImportError`;
`missing_extra` says whether an extra would bring what it lacks.
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
"""what pip calls this package: `autotune` on PyPI is another project"""
FORMERLY: Final = "autotune"
"""what pip calls it in an environment that installed a checkout from before the first release"""

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
"""the top-level modules that each extra brings"""


def require_extra(extra: str, needed_by: str) -> None:
    """Raises `MissingExtraError` unless every module of the extra is installed. Imports none of
    them.

    `needed_by` begins the message, e.g. "the 'local' runner".
    """
    for module in MODULES[extra]:
        if not is_installed(module):
            raise _error(module, extra, needed_by)


def require_extras(extras: Sequence[str], needed_by: str, *, or_else: str = "") -> None:
    """The same for several extras; the error names all modules that are missing, and installs their
    extras at once. `or_else`: what works without them."""
    missing: dict[str, str] = {}
    for extra in extras:
        absent = [module for module in MODULES[extra] if not is_installed(module)]
        if absent:
            missing[extra] = absent[0]
    if missing:
        are = "which is" if len(missing) == 1 else "which are"
        raise MissingExtraError(
            f"{needed_by} needs {' and '.join(missing.values())}, {are} not installed",
            remedy=f"install {'it' if len(missing) == 1 else 'them'} with: {install_command(','.join(missing))}{or_else}",
        )


def missing_extra(error: BaseException, needed_by: str) -> MissingExtraError | None:
    """The error that names the extra, when `error` says that a module of one is not installed; None
    for any other error."""
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
    except ModuleNotFoundError:  # an import hook that refuses it
        return False


def install_command(extra: str) -> str:
    """What installs the extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def reinstall_command() -> str:
    """What installs this package again: of a checkout in place, else from the index."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install --no-deps --editable {shlex.quote(str(checkout))}"
    return f"pip install --no-deps --force-reinstall {DISTRIBUTION}"


def is_own(distribution: metadata.Distribution) -> bool:
    """Whether an installed distribution is this package, by its name and by what its command
    starts."""
    names = (DISTRIBUTION, FORMERLY)
    return distribution.name in names and any(
        e.value == "autotune.cli:main" for e in distribution.entry_points
    )


def own_requirements() -> tuple[str, ...]:
    """What the installed package asks for, as its metadata says; nothing where it runs without
    being installed."""
    named = (one for name in (DISTRIBUTION, FORMERLY) for one in metadata.distributions(name=name))
    return next((tuple(one.requires or ()) for one in named if is_own(one)), ())


def _error(module: str, extra: str, needed_by: str) -> MissingExtraError:
    return MissingExtraError(
        f"{needed_by} needs {module}, which is not installed",
        remedy=f"install it with: {install_command(extra)}",
    )
