"""Folders that are sent along to the nodes of a Ray cluster: a program's, or that of the module
that builds a model.

Ray keeps each packed folder once, and brings it to a node when something there asks for it.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any, final

from autotune_workers.process.program.launch import UPLOAD
from autotune_workers.ray.nodes.program_folder import PackedFolder, pack, unpack

_REMOVER = 'exec 3<&0; (cat <&3 >/dev/null; rm -rf "$0") >/dev/null 2>&1 &'
"""a shell that removes a folder once the other end of its input is closed, and is no child of its
starter any more"""


@final
class SentFolders:
    """The folders of one runner."""

    def __init__(self, *, limit_bytes: int) -> None:
        """`limit_bytes`: most that a folder may have."""
        self._limit_bytes = limit_bytes
        self._packed: dict[str, PackedFolder] = {}
        """by folder: all trials of a runner run the same files, also when somebody edits them
        meanwhile"""
        self._sent: dict[str, Any] = {}
        """references to the packages that Ray has, by digest"""

    def digest(self, folder: str) -> str:
        """Of the folder's files. Raises `RunnerError` where it is too large to be sent along."""
        if folder not in self._packed:
            self._packed[folder] = pack(folder, limit_bytes=self._limit_bytes)
        return self._packed[folder].digest

    def reference(self, digest: str) -> Any:
        """The package as Ray has it; it is sent to each node that needs it, once."""
        import ray

        if digest not in self._sent:
            data = next(packed.data for packed in self._packed.values() if packed.digest == digest)
            self._sent[digest] = ray.put(data)
        return self._sent[digest]

    def close(self) -> None:
        """Lets Ray forget the packages."""
        self._sent.clear()


def folder_of_module(request: Mapping[str, Any]) -> str:
    """The folder that is sent along for a native trial of a model that code builds; empty where
    nodes have it. `request`: as plain values."""
    code = request["workload"]["model"].get("code") or {}
    uploads = request["trainer_options"].get("working_dir") == UPLOAD
    return str(code.get("folder", "")) if uploads else ""


def with_folder(request: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The request with another folder of its model's code."""
    workload = request["workload"]
    code = {**workload["model"]["code"], "folder": folder}
    return {**request, "workload": {**workload, "model": {**workload["model"], "code": code}}}


@final
class UnpackedFolder:
    """A folder that was sent to this process, and goes when it ends, however it ends."""

    def __init__(self, data: bytes) -> None:
        """Raises `OSError` where it cannot be written."""
        self.path = tempfile.mkdtemp(prefix="autotune-folder-")
        remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVER, self.path], stdin=subprocess.PIPE, start_new_session=True
        )
        self._alive = remover.stdin
        remover.wait()
        unpack(data, self.path)

    def close(self) -> None:
        """Removes it."""
        if self._alive is not None:
            with contextlib.suppress(OSError):
                self._alive.close()
