"""Waits until the program imports torch, so that the probe never imports it first.

A finder at the head of `sys.meta_path` lets the other finders find the module, and has it told to
the probe once it is executed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Callable
    from typing import Any

    from .channel import Channel


class _Finder:
    def __init__(self, wanted: dict[str, Callable[[Any], None]]) -> None:
        self._wanted = wanted

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any | None:
        if fullname not in self._wanted:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._tell(fullname, spec)
                return spec
        return None

    def _tell(self, name: str, spec: Any) -> None:
        """Has the probe told of the module when it was executed. A spec that was only looked up
        (`importlib.util.find_spec`) is never executed."""
        loader, execute = spec.loader, getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            # the class has it again; a loader that is kept was told once for each lookup
            vars(loader).pop("exec_module", None)
            execute(module)
            if (then := self._wanted.pop(name, None)) is not None:
                then(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that cannot be told
            return


def watch(reports: Channel) -> None:
    """Begins to wait."""

    watching: list[Callable[[], Any]] = []
    """gives the phases of the process that trains, once torch is imported"""

    def time_saving(module: Any, name: str) -> None:
        from .phases import CHECKPOINT, time_function

        time_function(module, name, CHECKPOINT, lambda: watching[0]() if watching else None)

    def on_torch(torch: Any) -> None:
        try:
            from . import training, written_files

            written_files.watch_writer(torch, "save", position=1, keyword="f")
            watching.append(training.watch(torch, reports))
            time_saving(torch, "save")
        except Exception as error:
            reports.send("trouble", error=repr(error)[:500])

    def on_safetensors(module: Any) -> None:
        try:
            from . import written_files

            for name in ("save_file", "save_model"):
                written_files.watch_writer(module, name, position=1, keyword="filename")
                time_saving(module, name)
        except Exception as error:
            reports.send("trouble", error=repr(error)[:500])

    wanted = {
        "torch": on_torch,
        "torch.distributed.checkpoint.state_dict_saver": lambda module: time_saving(module, "save"),
        "safetensors.torch": on_safetensors,
        "safetensors.numpy": on_safetensors,
    }
    if os.environ.get("AUTOTUNE_PROBE_OPTIONS"):
        from .parsed_options import watched

        wanted.update(watched(reports))
    # a file of site-packages (`*.pth`) was first
    for name in [name for name in wanted if name in sys.modules]:
        wanted.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(wanted))
