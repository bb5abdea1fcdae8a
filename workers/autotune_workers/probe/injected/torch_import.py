"""Runs callbacks when the program imports torch, so that the probe never imports it first.

A finder at the head of `sys.meta_path` finds the module with the other finders, and calls the probe
after the module is executed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Callable
    from typing import Any

    from .channel import Channel


_RENAMED = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
}
"""variables of NCCL's flight recorder: names before and from torch 2.9 on"""


def drop_old_names(torch_version: str) -> None:
    """Unsets the old names that the launch set beside the new ones: from torch 2.9 on, every rank
    warns of each."""
    if [int(part) for part in torch_version.split(".")[:2]] >= [2, 9]:
        for old, new in _RENAMED.items():
            if new in os.environ and os.environ.get(old) == os.environ[new]:
                del os.environ[old]


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
                self._call_after_import(fullname, spec)
                return spec
        return None

    def _call_after_import(self, name: str, spec: Any) -> None:
        """Wraps the spec's loader to call back after the module is executed. A spec that was only
        looked up (`importlib.util.find_spec`) is never executed."""
        loader, execute = spec.loader, getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            # restores the class's method; a reused loader was wrapped at each lookup
            vars(loader).pop("exec_module", None)
            execute(module)
            if (then := self._wanted.pop(name, None)) is not None:
                then(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # the loader's attributes cannot be set
            return


def watch(reports: Channel) -> None:
    """Sets the callbacks."""

    watching: list[Callable[[], Any]] = []
    """has the function that returns the training process's phases, once torch is imported"""

    def time_saving(module: Any, name: str) -> None:
        from .phases import CHECKPOINT, time_function

        time_function(module, name, CHECKPOINT, lambda: watching[0]() if watching else None)

    def on_torch(torch: Any) -> None:
        try:
            from . import training, written_files

            drop_old_names(str(torch.__version__))
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
    # imported before, by a `*.pth` file of site-packages
    for name in [name for name in wanted if name in sys.modules]:
        wanted.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(wanted))
