"""Settings from environment variables, which are read only here, when `settings` is called.

AUTOTUNE_DATA    folder for the user's data (default: the platform's user data folder)
AUTOTUNE_STORE   the results database, a path or URL (default: autotune.db in the data folder)
AUTOTUNE_URL     address of a service; commands then use it instead of a store
AUTOTUNE_TOKEN   token for that service; never printed

A service sets two more for the processes of its studies: AUTOTUNE_PROGRAM_USER, the user that runs
trainers' programs, and AUTOTUNE_PROGRAM_ENVIRONMENT, comma-separated names of variables that are
passed to these programs in addition to the usual ones.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import SpecError

PROGRAM_USER = "AUTOTUNE_PROGRAM_USER"
PROGRAM_ENVIRONMENT = "AUTOTUNE_PROGRAM_ENVIRONMENT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an environment."""

    data_folder: Path
    """folder of results and logs; created when something is written"""
    store: str
    """path or URL of the results database"""
    url: str | None = None
    """address of the service; with None, the store is used"""
    token: str | None = field(default=None, repr=False)
    """token for the service"""


def settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from an environment, by default this process's. An empty variable counts as
    unset."""
    given = {
        name: value.strip()
        for name, value in (os.environ if environment is None else environment).items()
    }
    folder = data_folder(given)
    return Settings(
        data_folder=folder,
        store=given.get("AUTOTUNE_STORE") or str(folder / "autotune.db"),
        url=given.get("AUTOTUNE_URL") or None,
        token=given.get("AUTOTUNE_TOKEN") or None,
    )


def data_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of the user's data: `AUTOTUNE_DATA`, or the platform's default. It may not exist
    yet."""
    configured = (
        (os.environ if environment is None else environment).get("AUTOTUNE_DATA", "").strip()
    )
    if configured:
        return expanded(configured, field="AUTOTUNE_DATA").absolute()
    import platformdirs

    with suppress(RuntimeError):
        folder = Path(platformdirs.user_data_dir("autotune", appauthor=False))
        if folder.is_absolute():  # some releases return a path with ~ instead of raising
            return folder
    raise SpecError(
        "there is no folder for results and logs: HOME is not set, and this machine does not know this user's home folder",
        remedy="set AUTOTUNE_DATA to a folder, or set HOME",
    )


def expanded(path: str | os.PathLike[str], *, field: str) -> Path:
    """The path with `~` or `~USER` replaced by the home folder. Raises `SpecError` if that is
    unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SpecError(
            f"the home folder in {os.fspath(path)!r} is unknown",
            remedy="write the full path",
            field=field,
        ) from None


def user_name() -> str:
    """The name of this process's user, or `user UID` if the user has no name, as in some
    containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def own_folder(name: str) -> Path:
    """A folder inside the user's data folder, created if it does not exist. Only this user can
    access the data folder."""
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / name).mkdir(exist_ok=True, mode=0o700)
    return folder / name
