"""The modules beside a script that it imports, read without running them: its parser, its training loop and its print statements may be there.

    from .params import parse_args        in open_clip_train/main.py: open_clip_train/params.py
    from pkg.train import run             in pkg/train_fast.py, started in the folder above: pkg/train.py

What a module does only when it is started itself (`if __name__ == "__main__"`) is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_MODULES = 40
"""modules that are read of one program"""
MAX_BYTES = 1 << 19
"""larger ones hold data"""


def imported_modules(tree: ast.Module, file: Path, base: Path) -> Iterator[tuple[str, ast.Module]]:
    """(name of the file, its statements) of the modules that lie beside `file` or under `base`, the nearest first."""
    queue, seen = [(tree, file)], {file.resolve()}
    while queue and len(seen) <= MAX_MODULES:
        importer, at = queue.pop(0)
        for path in _imported(importer, at, base):
            if path.resolve() in seen or len(seen) > MAX_MODULES:
                continue
            seen.add(path.resolve())
            with suppress(OSError, ValueError, SyntaxError, RecursionError):
                if path.stat().st_size <= MAX_BYTES:
                    found = _without_main(ast.parse(path.read_text(encoding="utf-8-sig")))
                    queue.append((found, path))
                    yield path.name, found


def _imported(tree: ast.Module, file: Path, base: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, (file.parent, base))
        elif isinstance(node, ast.ImportFrom):
            above = file.parent
            for _ in range(node.level - 1):
                above = above.parent
            places = (above,) if node.level else (file.parent, base)
            if node.module:
                yield from _files(node.module, places)
            for alias in node.names:
                yield from _files(".".join(filter(None, (node.module, alias.name))), places)


def _files(module: str, places: tuple[Path, ...]) -> Iterator[Path]:
    for place in places:
        for path in (place / f"{module.replace('.', '/')}.py", place / module.replace(".", "/") / "__init__.py"):
            if path.is_file():
                yield path
                return


def _without_main(tree: ast.Module) -> ast.Module:
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ =="))
    ]
    return ast.Module(body=kept, type_ignores=[])
