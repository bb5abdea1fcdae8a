"""Folders sent to the nodes of a Ray cluster: a program's, or that of the module that builds a
model.

Ray stores each packed folder once, and transfers it to a node on request.
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
"""a shell command that removes a folder when its input is closed, in a process detached from its
starter"""


@final
class SentFolders:
    """The folders sent by one runner."""

    def __init__(self, *, limit_bytes: int) -> None:
        """`limit_bytes`: largest size of a folder."""
        self._limit_bytes = limit_bytes
        self._packed: dict[str, PackedFolder] = {}
        """packed folders by path; packed once, so that all trials of a runner run the same files
        even if they are edited meanwhile"""
        self._sent: dict[str, Any] = {}
        """Ray's references to packed folders, by digest"""

    def digest(self, folder: str) -> str:
        """Digest of the folder's files. Raises `RunnerError` if it is too large to be sent."""
        if folder not in self._packed:
            self._packed[folder] = pack(folder, limit_bytes=self._limit_bytes)
        return self._packed[folder].digest

    def reference(self, digest: str) -> Any:
        """Ray's reference to the packed folder, which is sent to each node that needs it, once."""
        import ray

        if digest not in self._sent:
            data = next(packed.data for packed in self._packed.values() if packed.digest == digest)
            self._sent[digest] = ray.put(data)
        return self._sent[digest]

    def close(self) -> None:
        """Drops the references, so that Ray frees the packed folders."""
        self._sent.clear()


def folder_of_module(request: Mapping[str, Any]) -> str:
    """The folder to be sent for a native trial of a model built by code; empty if nodes have it.
    `request`: as plain values."""
    code = request["workload"]["model"].get("code") or {}
    uploads = request["trainer_options"].get("working_dir") == UPLOAD
    return str(code.get("folder", "")) if uploads else ""


def with_folder(request: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The request with another folder for its model's code."""
    workload = request["workload"]
    code = {**workload["model"]["code"], "folder": folder}
    return {**request, "workload": {**workload, "model": {**workload["model"], "code": code}}}


@final
class UnpackedFolder:
    """A folder sent to this process, removed when the process ends, however it ends."""

    def __init__(self, data: bytes) -> None:
        """Unpacks `data` into a temporary folder. Raises `OSError` if it cannot be written."""
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
