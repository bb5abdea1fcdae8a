"""A network of nodes: a bridge of this machine, and for each node the namespaces (network,
processes, hostname, IPC, mounts) of one process 1.

    this machine   PREFIX.1, on the bridge `atb<K>`          PREFIX = 10.77.<K>, the first K that nobody uses
    node i         PREFIX.<10 + i>, hostname `atn<K>-<i>`    link: `eth0` inside, `atv<K>-<i>` on the bridge

Process 1 ends with the process that made the network, and everything on the node ends with process
1. What is left of a network whose maker was killed (bridge, control groups, folder) is removed when
the next one is made: the bridge's alias names its maker.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune_workers.process.machine import is_alive
from autotune_workers.ray.cluster import watchdog
from tests.workers.processes import until

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""commands, and the Debian packages that have them"""
BRIDGE, LINK = "atb", "atv"
SUBNETS = range(1, 250)
INTERFACE = "eth0"
"""of a node's own end of its link"""
BUFFER = "burst 32kb latency 100ms"
"""of a link with a limited rate"""
FIRST = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"
"""process 1 of a node: orphans that end are no zombies (a shell's `trap \'\' CHLD` does not see to
that)"""


def what_is_missing() -> str:
    """Why there can be no such nodes on this machine; empty when there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if absent:
        return f"network namespaces need the packages {', '.join(absent)}"
    probe = "ip link add name probe0 type bridge && ip link add name probe1 type veth peer name probe2 && mount -t tmpfs none /dev/shm"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "sh", "-c", probe],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return f"this machine permits no network namespaces: {tried.stderr.strip()[:200]}"
    return (
        ""
        if _freezers()
        else "nodes that stand still need a control group (v1 freezer, or v2) that root may write"
    )


class Node:
    """One machine. It is off until `boot`."""

    def __init__(self, network: Network, number: int) -> None:
        """`number`: from 1."""
        self._network = network
        self.name = f"atn{network.subnet}-{number}"
        self.address = f"{network.prefix}.{10 + number}"
        self.folder = Path(network.folder, str(number))
        """its TMPDIR"""
        self._link = f"{LINK}{network.subnet}-{number}"
        self._group = _freezers()[0] / self.name
        self._holder: subprocess.Popen[bytes] | None = None
        self._first = 0

    @property
    def is_on(self) -> bool:
        """Whether process 1 lives."""
        return self._holder is not None and self._holder.poll() is None

    def boot(self) -> None:
        """Starts process 1 and connects the node."""
        self.folder.mkdir(exist_ok=True)
        self._group.mkdir(exist_ok=True)
        # torch asks for its own name and those of its peers: where nobody answers, each question
        # takes seconds
        setup = (
            f"hostname {self.name}; mount -t tmpfs tmpfs /dev/shm; mount --bind {self._network.hosts} /etc/hosts;"
            f"mount --bind /dev/null /etc/resolv.conf; echo up; exec {sys.executable} -S -E -c '{FIRST}'"
        )
        self._holder = subprocess.Popen(
            [
                *self._inside_group(),
                *(
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    "--net",
                    "--mount",
                    "--uts",
                    "--ipc",
                    "--pid",
                ),
                *("--fork", "--kill-child", "--mount-proc", "sh", "-ec", setup),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        with self._holder.stdout as output:
            if output.readline() != b"up\n":
                raise RuntimeError(f"the node {self.name} did not start")
        holder = self._holder.pid
        self._first = int(Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0])
        command(
            "ip",
            "link",
            "add",
            self._link,
            "type",
            "veth",
            "peer",
            "name",
            INTERFACE,
            "netns",
            str(self._first),
        )
        command("ip", "link", "set", self._link, "master", self._network.bridge, "up")
        for words in (
            f"addr add {self.address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
            "link set lo up",
            f"route add default via {self._network.address}",  # else programs take 127.0.0.1 for their own address
        ):
            command(*self._inside("--net"), "ip", *words.split())

    def start(
        self, *argv: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a program on the node, in our working folder. `options`: of `Popen`."""
        spaces = ("--net", "--mount", "--uts", "--ipc", "--pid")
        return subprocess.Popen(
            [*self._inside_group(), *self._inside(*spaces), "env", f"--chdir={os.getcwd()}", *argv],
            env={**os.environ, "TMPDIR": str(self.folder), **(environment or {})},
            start_new_session=True,
            **options,
        )

    def _inside_group(self) -> tuple[str, ...]:
        return "sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._group / "cgroup.procs")

    def _inside(self, *spaces: str) -> tuple[str, ...]:
        return "nsenter", "-t", str(self._first), *spaces, "--"

    def processes(self, part: str = "") -> list[int]:
        """Living processes of the node whose command line contains `part`, by their numbers on this
        machine."""
        found = []
        for pid in (int(line) for line in (self._group / "cgroup.procs").read_text().split()):
            with contextlib.suppress(OSError):  # it ended meanwhile
                words = (
                    Path(f"/proc/{pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
                if part in words and is_alive(pid):
                    found.append(pid)
        return found

    def kill(self) -> None:
        """Ends everything on the node at once; the system still tells its peers that their
        connections are closed."""
        if self.is_on:
            assert self._holder is not None
            self.thaw()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
            self._holder.wait(20)
            until(lambda: not self.processes(), 20)
            subprocess.run(["ip", "link", "del", self._link], capture_output=True)

    def lose_power(self) -> None:
        """Ends everything on the node at once, and its peers hear nothing of it."""
        self.cut()
        self.kill()

    def cut(self) -> None:
        """Takes its link down."""
        command("ip", "link", "set", self._link, "down")

    def heal(self) -> None:
        """Takes its link up again."""
        command("ip", "link", "set", self._link, "up")

    def freeze(self) -> None:
        """All its processes stand still."""
        self._hold(True)

    def thaw(self) -> None:
        """They go on."""
        self._hold(False)

    def _hold(self, still: bool) -> None:
        v2 = self._group / "cgroup.freeze"
        if v2.exists():
            v2.write_text("1" if still else "0")
        else:
            (self._group / "freezer.state").write_text("FROZEN" if still else "THAWED")

    def limit(self, rate: str | None) -> None:
        """Its link carries `rate` (as tc(8) writes it, `50mbit`) in each direction; None: as much
        as it can."""
        for place, interface in ((self._inside("--net"), INTERFACE), ((), self._link)):
            subprocess.run(
                [*place, "tc", "qdisc", "del", "dev", interface, "root"], capture_output=True
            )
            if rate is not None:
                shape = f"qdisc add dev {interface} root tbf rate {rate} {BUFFER}"
                command(*place, "tc", *shape.split())

    def remove(self) -> None:
        """Ends the node for good."""
        self.kill()
        _remove_group(self._group)


class Network:
    """The bridge and its nodes, which are on from the beginning. Close it: everything is gone
    then."""

    def __init__(self, count: int) -> None:
        """`count`: of nodes. Raises `RuntimeError` when they cannot be made."""
        remove_leftovers()
        self.nodes: list[Node] = []
        # the names of Ray's sockets below it are long
        self.folder = tempfile.mkdtemp(prefix="at-", dir="/tmp")
        self._watchdog = subprocess.Popen(
            [sys.executable, "-S", "-E", watchdog.__file__, self.folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.subnet, self.bridge = 0, ""
        try:
            self._take_subnet()
            self.hosts = Path(self.folder, "hosts")
            self.nodes = [Node(self, number) for number in range(1, count + 1)]
            lines = ["127.0.0.1 localhost", f"{self.address} {os.uname().nodename}"]
            lines += [f"{node.address} {node.name}" for node in self.nodes]
            self.hosts.write_text("\n".join(lines) + "\n")
            for node in self.nodes:
                node.boot()
        except BaseException:
            self.close()
            raise

    @property
    def prefix(self) -> str:
        """The first three bytes of all its addresses."""
        return f"10.77.{self.subnet}"

    @property
    def address(self) -> str:
        """This machine's own."""
        return f"{self.prefix}.1"

    def _take_subnet(self) -> None:
        """The first that nobody uses; making the bridge decides between two runs that want the
        same."""
        used = command("ip", "-4", "addr")
        for self.subnet in SUBNETS:
            bridge = f"{BRIDGE}{self.subnet}"
            made = subprocess.run(
                ["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, text=True
            )
            if made.returncode == 0:
                self.bridge = bridge
                command("ip", "link", "set", bridge, "alias", _alias(self.folder))
                if f" {self.prefix}." not in used:
                    command("ip", "addr", "add", f"{self.address}/24", "dev", bridge)
                    command("ip", "link", "set", bridge, "up")
                    return
                command("ip", "link", "del", bridge)
            elif "exists" not in made.stderr:
                raise RuntimeError(f"no bridge can be made: {made.stderr.strip()}")
        raise RuntimeError("all subnets of 10.77 are in use")

    def close(self) -> None:
        """Ends the nodes, what runs for them on this machine, and the network."""
        for node in self.nodes:
            with contextlib.suppress(Exception):
                node.remove()
        # a head of Ray that is asked politely waits for nodes that are gone
        for pid in watchdog.holders(self.folder):
            if pid != self._watchdog.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._watchdog.communicate()  # removes the folder
        if self.bridge:
            subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_leftovers() -> None:
    """Removes the networks whose makers are dead."""
    for link in json.loads(command("ip", "-json", "link", "show", "type", "bridge") or "[]"):
        name, alias = link.get("ifname", ""), link.get("ifalias", "").split()
        if not name.startswith(BRIDGE) or len(alias) != 4 or alias[0] != "autotune-tests":
            continue
        pid, started, folder = int(alias[1]), alias[2], alias[3]
        if _started(pid) == started:
            continue
        for freezer in _freezers():
            for group in freezer.glob(f"atn{name.removeprefix(BRIDGE)}-*"):
                _remove_group(group)
        watchdog.end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        for other in json.loads(command("ip", "-json", "link", "show", "master", name) or "[]"):
            subprocess.run(["ip", "link", "del", other["ifname"]], capture_output=True)
        subprocess.run(["ip", "link", "del", name], capture_output=True)


def command(*argv: str) -> str:
    """The command's output. Raises `RuntimeError` with what it said when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _freezers() -> list[Path]:
    """Where control groups that can stand still are made, the newer kind first."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    v2 = [Path(m[1]) for m in mounts if m[2] == "cgroup2"]
    v1 = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "freezer" in m[3].split(",")]
    return [path for path in (*v2, *v1) if os.access(path, os.W_OK) and not _is_read_only(path)]


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _remove_group(group: Path) -> None:
    """Ends what lives in the control group, and removes it."""
    end_s = time.monotonic() + 10.0
    while group.exists() and time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            (group / "freezer.state").write_text("THAWED")
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


def _started(pid: int) -> str:
    """When that process started, in ticks since the machine did; empty when there is none. With its
    number it is unique."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _alias(folder: str) -> str:
    return f"autotune-tests {os.getpid()} {_started(os.getpid())} {folder}"


@contextlib.contextmanager
def limited(nodes: list[Node], rate: str) -> Iterator[None]:
    """All links of these nodes carry that rate meanwhile."""
    for node in nodes:
        node.limit(rate)
    try:
        yield
    finally:
        for node in nodes:
            node.limit(None)
