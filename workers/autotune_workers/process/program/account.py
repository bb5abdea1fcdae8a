"""The user account that runs a program. Imports the standard library only, because the keeper
imports it.

A program of another user cannot read this user's files or the environment of its processes
(proc(5)). Only root can start one.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38


def account(user: str) -> pwd.struct_passwd | None:
    """The account with this name; None if it is empty or the current user. Raises `OSError` if it
    does not exist, or this process is not root."""
    if not user:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise OSError(
            f"programs should run as the user {user!r}, but this machine has no such user"
        ) from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise OSError(f"only root can run programs as the user {user!r}")
    return entry


def variables_of(who: pwd.struct_passwd | None, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with HOME, USER and LOGNAME of that account."""
    of_account = (
        {} if who is None else {"HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name}
    )
    return {**variables, **of_account}


def hand_over(who: pwd.struct_passwd | None, *folders: str) -> None:
    """Changes the owner of these folders and their content to the account."""
    if who is None:
        return
    for folder in filter(None, folders):
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, who.pw_uid, who.pw_gid, follow_symlinks=False)


def become(who: pwd.struct_passwd | None) -> None:
    """Changes this process's user to the account, irreversibly: its children cannot gain rights,
    not even by a setuid program."""
    if who is not None:
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.initgroups(who.pw_name, who.pw_gid)
        os.setgid(who.pw_gid)
        os.setuid(who.pw_uid)
