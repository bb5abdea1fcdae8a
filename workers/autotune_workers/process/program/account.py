"""The account of somebody's program: the user as whom it runs. The keeper imports it, so it needs
the standard library only.

A program of another user cannot read our files, nor the environment of our processes (proc(5)).
Only root can start one.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38


def account(user: str) -> pwd.struct_passwd | None:
    """The account of a user, by name; None for our own. Raises `OSError` for a user that we cannot
    become."""
    if not user:
        return None
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise OSError(
            f"programs should run as the user {user!r}, but this machine has no such user"
        ) from None
    if found.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise OSError(f"only root can run programs as the user {user!r}")
    return found


def variables_of(who: pwd.struct_passwd | None, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables, with the home and the names of that account."""
    own = {} if who is None else {"HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name}
    return {**variables, **own}


def hand_over(who: pwd.struct_passwd | None, *folders: str) -> None:
    """Makes the account the owner of these folders and all that is in them."""
    if who is None:
        return
    for folder in filter(None, folders):
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, who.pw_uid, who.pw_gid, follow_symlinks=False)


def become(who: pwd.struct_passwd | None) -> None:
    """Turns this process into one of that account, for good: no program that it starts gets more
    rights, not even a setuid one."""
    if who is not None:
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.initgroups(who.pw_name, who.pw_gid)
        os.setgid(who.pw_gid)
        os.setuid(who.pw_uid)
