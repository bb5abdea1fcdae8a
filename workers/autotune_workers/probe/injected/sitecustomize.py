"""Python runs this file before the program, because its folder is on PYTHONPATH. It starts the
probe, then runs the `sitecustomize` that it hides.

It removes its folder from `sys.path`, so that the program finds the same modules as without it.
"""

from __future__ import annotations

import os
import sys


def _start_probe(here: str) -> None:
    reports = os.environ.get("AUTOTUNE_PROBE_REPORTS")
    if not reports or not (reports == "-" or os.path.isdir(reports)):
        return
    try:
        if not os.path.isdir(os.path.join(here, "autotune_probe")):
            _name_package(here)
        sys.path.insert(0, here)
        from autotune_probe import channel, torch_import, written_files  # type: ignore[import-not-found]

        channel_of_process = channel.Channel("" if reports == "-" else reports)
        if os.environ.get("AUTOTUNE_PROBE_FILES") != "off":
            written_files.watch(channel_of_process)
        torch_import.watch(channel_of_process)
    except Exception:  # errors of the probe must not affect the program
        return


def _name_package(here: str) -> None:
    """Registers this folder as the package `autotune_probe`, which is its name as a copy, if the
    file runs from its place among the probe's modules."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(
        "autotune_probe", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["autotune_probe"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _run_hidden_sitecustomize(here: str) -> None:
    sys.path[:] = rest = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    finder = next((f for f in sys.meta_path if getattr(f, "__name__", "") == "PathFinder"), None)
    spec = finder.find_spec("sitecustomize", rest) if finder is not None else None
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))
_start_probe(_HERE)
_run_hidden_sitecustomize(_HERE)
