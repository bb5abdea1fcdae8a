"""The package's data files: search spaces, ready-made study specs, dashboards.

In a wheel, the folders are inside the package (`autotune/data/NAME`); in a checkout, next to it
(`NAME/`). The folder inside the package takes precedence, because one next to an installed package
may belong to another program.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from autotune.errors import CatalogError
from autotune.spec.checks import nearest

_PACKAGE = Path(__file__).parent


def search_spaces() -> Path:
    """The folder of search spaces; its subfolder `studies/` has ready-made study specs."""
    return _folder("search_spaces")


def dashboards() -> Path:
    """The folder of web templates and static files, Grafana dashboards and Prometheus rules."""
    return _folder("dashboards")


@lru_cache(maxsize=8)
def web_file(name: str) -> str:
    """The text of a style sheet or a script of the web pages."""
    return (dashboards() / "web" / name).read_text(encoding="utf-8")


def space_files() -> dict[str, Path]:
    """The files of the search spaces by name, in alphabetical order."""
    return {path.stem: path for path in sorted(search_spaces().glob("*.yaml"))}


def study_files() -> dict[str, Path]:
    """The files of the ready-made study specs by name, in alphabetical order."""
    return {path.stem: path for path in sorted((search_spaces() / "studies").glob("*.yaml"))}


def space_file(name: str) -> Path:
    """The file of the search space with this name. Raises `CatalogError` for an unknown name."""
    files = space_files()
    if name not in files:
        raise CatalogError(
            f"there is no search space {name!r}",
            remedy=nearest(name, files)
            or f"choose one of {', '.join(files)}, or list the knobs inline",
            field="space",
        )
    return files[name]


def _folder(name: str, package: Path | None = None) -> Path:
    """The data folder with this name: inside the package, or else next to it."""
    home = _PACKAGE if package is None else package
    places = (home / "data" / name, home.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise CatalogError(
        f"the data folder {name!r} is missing: it is neither in {places[0].parent} nor in {places[1].parent}",
        remedy="reinstall the package",
    )
