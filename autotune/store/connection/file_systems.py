"""Detection of file systems that several machines share, where an SQLite file may be corrupted.

SQLite separates writers by file locks and shared memory. If two machines do not see each other's
locks, both write at the same time and corrupt the file within seconds
(sqlite.org/howtocorrupt.html, section 2.1). Examples are NFS without its lock daemon, Lustre
mounted with `localflock`, and network folders through FUSE. One machine cannot find out whether the
locks of a mount work across machines.
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
"""types of mounts (proc(5), `mountinfo`) that other machines may share"""
LOCAL_FUSE = frozenset({
    "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.cryfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat", "fuse.ext2", "fuse.lxcfs",
    "fuse.snapfuse", "fuse.squashfuse", "fuse.portal",
})  # fmt: skip
"""types of FUSE mounts of local disks; any other FUSE mount may be a network folder"""
MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system, from a line of `mountinfo`."""

    folder: str
    """mount point"""
    kind: str
    """type of the file system"""

    @property
    def is_shared(self) -> bool:
        """Whether other machines may write to it."""
        is_fuse = self.kind == "fuse" or (
            self.kind.startswith("fuse.") and self.kind not in LOCAL_FUSE
        )
        return self.kind in SHARED or is_fuse


def mount_of(path: Path, lines: Iterable[str]) -> Mount | None:
    """Return the mount of a resolved path, given the lines of `mountinfo`: the one with the longest
    mount point above the path, the last of several with the same mount point."""
    longest: Mount | None = None
    for mount in _mounts(lines):
        contains = path.is_relative_to(mount.folder)
        if contains and (longest is None or len(mount.folder) >= len(longest.folder)):
            longest = mount
    return longest


def _mounts(lines: Iterable[str]) -> Iterator[Mount]:
    """Yield the mounts in the lines of `mountinfo`."""
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if separator and len(fields) > 4 and kind:
            folder = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            yield Mount(folder=folder, kind=kind)


def shared_mount(path: Path) -> Mount | None:
    """Return the mount of a path, which may not exist yet, if other machines may share it; None if
    they may not, or if the mounts are unknown, which they are outside Linux."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    mount = mount_of(path.resolve(), lines)
    return mount if mount is not None and mount.is_shared else None
