"""File systems that several machines share, on which SQLite must not lie.

SQLite keeps writers apart by locks of the file and by memory that its readers map. Where two
machines (or two mounts of one folder) do not see each other's locks, each believes that it writes
alone, and the file is destroyed within seconds (sqlite.org/howtocorrupt.html, section 2.1): NFS
without its lock daemon, Lustre mounted with `localflock`, network folders through FUSE. Whether the
locks of a mount meet cannot be seen from one machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHARED = frozenset({
    "nfs", "nfs3", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "afs", "ocfs2", "gfs2", "glusterfs", "orangefs", "pvfs2",
    "panfs", "wekafs", "vastfs", "quobyte", "daos", "davfs", "dvs",
})  # fmt: skip
"""types of mounts (proc(5), `mountinfo`) behind which other machines may stand"""
OF_ONE_MACHINE = frozenset({
    "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.cryfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat", "fuse.ext2", "fuse.lxcfs",
    "fuse.snapfuse", "fuse.squashfuse", "fuse.portal",
})  # fmt: skip
"""types of FUSE (`fuse.NAME`) of a disk of this machine; any other may be a network's"""
MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of `mountinfo`."""

    folder: str
    kind: str

    @property
    def is_shared(self) -> bool:
        """Whether other machines may write there too."""
        is_fuse = self.kind == "fuse" or (
            self.kind.startswith("fuse.") and self.kind not in OF_ONE_MACHINE
        )
        return self.kind in SHARED or is_fuse


def mount_of(path: Path, lines: Iterable[str]) -> Mount | None:
    """The mount on which a resolved path lies, by the lines of `mountinfo`: the longest folder
    above it, of several in one place the last."""
    found: Mount | None = None
    for mount in _mounts(lines):
        holds = path.is_relative_to(mount.folder)
        if holds and (found is None or len(mount.folder) >= len(found.folder)):
            found = mount
    return found


def _mounts(lines: Iterable[str]) -> Iterator[Mount]:
    for line in lines:
        before, separator, behind = line.partition(" - ")
        fields, kinds = before.split(" "), behind.split(" ")
        if separator and len(fields) > 4 and kinds[0]:
            folder = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
            yield Mount(folder=folder, kind=kinds[0])


def shared_mount(path: Path) -> Mount | None:
    """The mount of a file or folder, present or to be made, if other machines may share it; None
    where that is not known: without Linux's list of mounts."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    mount = mount_of(path.resolve(), lines)
    return mount if mount is not None and mount.is_shared else None
