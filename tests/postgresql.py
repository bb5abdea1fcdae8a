"""A real PostgreSQL server for tests: on a free port of loopback, in a folder of its own, gone when
its owner is. A standby copies one and can take its place.

The server refuses to run as root, so that root starts it as an unprivileged user, in a folder that
this user can reach. It is a child of the test process and dies with it (`setpriv --pdeathsig`),
even when that is killed; nothing is shared between two runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune_workers.process.machine import free_port

HOW = "PostgreSQL is not installed; run `bash .ci/install-services` (as root) to run these tests"
DEADLINE_S = 600.0
_NUMBERS = itertools.count()


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres`, the newest version's; None when there is none."""
    found = [p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).resolve().parent)
    complete = [folder for folder in found if (folder / "postgres").exists()]
    return max(
        complete,
        key=lambda f: [int(d) for d in f.parent.name.split(".") if d.isdigit()],
        default=None,
    )


class PostgresServer:
    """A server that can be stopped, killed and started again on its data and port."""

    def __init__(
        self,
        programs: Path,
        folder: Path,
        *,
        fsync: bool = False,
        standby_of: PostgresServer | None = None,
        beside: str = "",
    ) -> None:
        """`standby_of`: the running server that it copies and then follows. `beside`: another
        address of this machine, at which its subnet is answered."""
        self.programs = programs
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = 0
        self._fsync = fsync
        self._beside = beside
        self._process: subprocess.Popen[bytes] | None = None
        account = _unprivileged()
        self._become = _become(account)
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        if standby_of is not None:
            copied = [
                f"--pgdata={self.data}",
                "--write-recovery-conf",
                "--no-sync",
                f"--dbname={standby_of.url()}",
            ]
            self._run([str(programs / "pg_basebackup"), "--checkpoint=fast", *copied])
            return
        options = [
            "--auth=trust",
            "--username=autotune",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        self._run([str(programs / "initdb"), f"--pgdata={self.data}", *options])
        if beside:
            with (self.data / "pg_hba.conf").open("a") as allowed:
                allowed.write(f"host all all {beside}/24 trust\n")

    def url(self, database: str = "postgres", *, host: str = "127.0.0.1") -> str:
        """The address of one of its databases."""
        return f"postgresql://autotune@{host}:{self.port}/{database}"

    def start(self) -> None:
        """Starts it, on the port that it had before, and waits until it answers."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            port = self.port or free_port("127.0.0.1")
            settings = {
                "listen_addresses": ",".join(filter(None, ("127.0.0.1", self._beside))),
                "port": port,
                "unix_socket_directories": "",
                "fsync": "on" if self._fsync else "off",
                "max_connections": 200,
                "shared_buffers": "32MB",
            }
            argv = [str(self.programs / "postgres"), "-D", str(self.data)]
            for name, value in settings.items():
                argv += ["-c", f"{name}={value}"]
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._become, *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                )
            if self._answers(port, deadline):
                self.port = port
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"PostgreSQL did not start: {self.log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.2)  # the port was taken, or the last server still lets go of it

    def stop(self, *, kill: bool = False) -> None:
        """Stops it: at once but cleanly, or with SIGQUIT as in a crash (its children die too).
        Idempotent."""
        if self._process is None:
            return
        self._process.send_signal(3 if kill else 2)
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(DEADLINE_S)
        self._process = None

    def promote(self) -> None:
        """Ends the recovery of a standby: from here on it takes writes."""
        self._ask("SELECT pg_promote(true, 60)")

    def wait_for_standby(self) -> None:
        """From here on a commit is acknowledged once a standby has it too. Returns when one
        follows."""
        self._ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._ask("SELECT pg_reload_conf()")
        deadline = time.monotonic() + DEADLINE_S
        while self._ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != 1:
            if time.monotonic() > deadline:
                raise TimeoutError("no standby follows")
            time.sleep(0.05)

    def _ask(self, question: str) -> Any:
        """The first value of the answer."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True, connect_timeout=300) as connection:
            answer = connection.execute(question)
            row = answer.fetchone() if answer.description else None
            return row[0] if row else None

    def new_database(self, template: str = "template1", *, tablespace: Path | None = None) -> str:
        """Makes an empty database (or a copy) and returns its address. `tablespace`: an empty
        folder of the server's user in which its tables lie."""
        import psycopg

        name = f"store_{next(_NUMBERS)}"
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=300) as connection:
            where = ""
            if tablespace is not None:
                connection.execute(f"CREATE TABLESPACE \"{name}\" LOCATION '{tablespace}'")
                where = f' TABLESPACE "{name}"'
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"{where}')
        return self.url(name)

    def _answers(self, port: int, deadline: float) -> bool:
        import psycopg

        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with psycopg.connect(
                    f"postgresql://autotune@127.0.0.1:{port}/postgres", connect_timeout=60
                ) as connection:
                    at = connection.execute("SHOW data_directory").fetchone()
                    return at is not None and at[0] == str(self.data)
            except psycopg.OperationalError:
                time.sleep(0.05)
        if self._process.poll() is None:
            self.stop(kill=True)
        return False

    def _run(self, argv: list[str]) -> None:
        done = subprocess.run(
            [*self._become, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=DEADLINE_S,
        )
        if done.returncode:
            raise RuntimeError(f"{argv[0]} failed: {done.stderr.decode(errors='replace')[-2000:]}")


@contextlib.contextmanager
def postgres_server(
    *,
    fsync: bool = False,
    standby_of: PostgresServer | None = None,
    beside: str = "",
    parent: Path | None = None,
) -> Iterator[PostgresServer]:
    """A running server; the test is skipped, saying how to install one, where there is none.
    `parent`: of its folder; the other options are those of `PostgresServer`."""
    programs = find_programs()
    if programs is None:
        pytest.skip(HOW)
    pytest.importorskip("psycopg", reason="psycopg is not installed; install the postgresql extra")
    # Not under pytest's own folder: that one only its owner may enter, and the server has another
    # owner.
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgresql-", dir=parent))
    try:
        server = PostgresServer(programs, folder, fsync=fsync, standby_of=standby_of, beside=beside)
        try:
            server.start()
            yield server
        finally:
            server.stop(kill=True)  # its data are thrown away, so that there is nothing to write
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.skip("PostgreSQL does not run as root, and there is no unprivileged user to run it as")


def _become(account: pwd.struct_passwd | None) -> list[str]:
    setpriv = shutil.which("setpriv")
    if account is None:
        return [setpriv, "--pdeathsig", "INT", "--"] if setpriv else []
    if setpriv is None:
        pytest.skip("root needs `setpriv` (util-linux) to run PostgreSQL as another user")
    ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return [setpriv, *ids, "--pdeathsig", "INT", "--"]
