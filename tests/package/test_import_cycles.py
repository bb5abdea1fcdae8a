"""No module imports itself by way of others, in either package.

Imports inside functions and for type checking count: they hide a circle, they do not remove it.
Only the package itself names, for type checkers, what it loads by name when it is asked for.
"""

from __future__ import annotations

import grimp
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules that all reach one another, from the modules that each one imports."""
    names = sorted(imports)
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[a], number[b]) for a, imported in imports.items() for b in imported]
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    matrix = coo_array(([1] * len(edges), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, connection="strong")
    groups: dict[int, set[str]] = {}
    for name, label in zip(names, labels, strict=True):
        groups.setdefault(int(label), set()).add(name)
    alone = {name for name, imported in imports.items() if name in imported}
    return {frozenset(group) for group in groups.values() if len(group) > 1 or group & alone}


def test_modules_do_not_import_in_circles() -> None:
    graph = grimp.build_graph("autotune", "autotune_workers", cache_dir=None)
    modules = graph.modules - {"autotune"}
    found = circles(
        {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    )
    assert not found, (
        f"modules must not import in a circle, but these do: {[sorted(circle) for circle in found]}; move what both need to a third module"
    )


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, {frozenset("abc")}),
        ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}, {frozenset("ab"), frozenset("cd")}),
        ({"a": {"a"}, "b": set()}, {frozenset("a")}),
    ],
)
def test_circles_are_found(imports: dict[str, set[str]], expected: set[frozenset[str]]) -> None:
    assert circles(imports) == expected
