"""A real Slurm on one machine: its controller and login node here, one slurmd on each node of a
network.

Needs root and Debian's slurm-wlm and munge. Commands find the cluster by `environment`
(SLURM_CONF). A node has its own munged, and a /tmp of its own when `shared` says which folders
below /tmp all nodes see. Its GPUs are null devices, which are scheduled and numbered like any
other.

    python -m tests.nodes.slurm_cluster NODES [COMMAND...]     starts it, runs the command (default: a shell) on the login node, ends it
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.nodes.network import Network, Node
from tests.nodes.network import what_is_missing as no_network
from tests.workers.processes import until

TOOLS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "mungekey": "munge",
}
"""programs, and the Debian packages that have them"""
PORTS, NODE_PORT = range(8740, 8760), 6818
"""of the controller, on this machine, and of each slurmd, in a network of its own"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
"""states of a job that is over"""

CONF = """\
ClusterName=attest
SlurmctldHost={controller}({address})
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1,sched_min_interval=0,requeue_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=30
MessageTimeout=30
BatchStartTimeout=30
KillWait={kill_wait_s}
UnkillableStepTimeout=60
MinJobAge=3600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=00:30:00 State=UP PriorityTier=1 OverSubscribe=NO GraceTime={grace_s}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE DefaultTime=00:30:00 State=UP PriorityTier=10 PreemptMode=OFF
"""


def what_is_missing() -> str:
    """Why there can be no Slurm on this machine; empty when there can."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    absent = sorted(
        {package for tool, package in TOOLS.items() if shutil.which(tool, path=path) is None}
    )
    return f"a real Slurm needs the packages {', '.join(absent)}" if absent else no_network()


class SlurmCluster:
    """The cluster. `nodes` are those of the network: take one's power, and `join` it again after a
    new boot."""

    def __init__(
        self,
        network: Network,
        *,
        cpus: int = 4,
        gpus: Sequence[int] = (),
        kill_wait_s: int = 30,
        grace_s: int = 0,
        shared: Sequence[str] = (),
    ) -> None:
        """`gpus`: of each node, 0 or more; none: no node has any. `grace_s`: between the warning
        and the end of a job that is preempted. `shared`: folders below /tmp that all nodes see,
        each having a /tmp of its own for the rest; none: they share all of /tmp."""
        self.network, self.nodes = network, network.nodes
        self.folder = Path(network.folder)  # as the network's keeper ends what names it
        self._shared = [*shared, str(self.folder)] if shared else []
        self._daemons: dict[str, list[subprocess.Popen[bytes]]] = {}
        for name in ("munge", "state", "devices"):
            (self.folder / name).mkdir(mode=0o755)
        lines, gres = [], []
        for node, count in zip(self.nodes, gpus or [0] * len(self.nodes), strict=True):
            has = f" Gres=gpu:{count}" if count else ""
            lines.append(
                f"NodeName={node.name} NodeAddr={node.address} CPUs={cpus} RealMemory=6000 State=UNKNOWN{has}"
            )
            gres += [
                f"NodeName={node.name} Name=gpu File={self._device(number)}"
                for number in range(count)
            ]
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(
            CONF.format(
                controller=os.uname().nodename,
                address=network.address,
                port=_free_port(),
                node_port=NODE_PORT,
                folder=self.folder,
                kill_wait_s=kill_wait_s,
                grace_s=grace_s,
                nodes="\n".join(lines),
            )
        )
        (self.folder / "gres.conf").write_text("\n".join(gres) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "plugstack.conf").write_text("")
        self._key = self.folder / "munge.key"
        subprocess.run(["/usr/sbin/mungekey", "--create", f"--keyfile={self._key}"], check=True)
        self.environment = {"SLURM_CONF": str(self.conf)}

    def _device(self, number: int) -> Path:
        """A null device: a GPU's file must be one, and a plain file is ignored."""
        path = self.folder / "devices" / f"nvidia{number}"
        if not path.exists():
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        return path

    def start(self) -> None:
        """Until all nodes are idle."""
        self._munge(None)
        self._controller()
        for node in self.nodes:
            self.join(node)
        self.wait_idle()

    def _controller(self) -> None:
        self._spawn("controller", None, ["/usr/sbin/slurmctld", "-D", "-f", str(self.conf)])

    def restart_controller(self) -> None:
        """As after a crash: killed, and started again with what it saved, which it does every few
        seconds."""
        for process in self._daemons.pop("controller"):
            process.kill()
            process.wait()
        self._controller()

    def join(self, node: Node) -> None:
        """slurmd starts on a node that was booted."""
        own = self.folder / f"own-{node.name}"
        (own / "munge").mkdir(parents=True, exist_ok=True)
        (self.folder / f"spool-{node.name}").mkdir(exist_ok=True)
        mounts = [f"mount --bind {own}/munge {self.folder}/munge"]
        if self._shared:
            (own / "tmp").mkdir(exist_ok=True)
            (own / "tmp").chmod(0o1777)
            for kept in self._shared:
                target = own / "tmp" / Path(kept).relative_to("/tmp")
                target.mkdir(parents=True, exist_ok=True)
                mounts.append(f"mount --rbind {kept} {target}")
            mounts.append(f"mount --rbind {own}/tmp /tmp")
        made = node.start(
            "sh", "-ec", "; ".join(mounts), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said = made.communicate(timeout=60)[0]
        if made.returncode:
            raise RuntimeError(f"{node.name}: {said.decode()}")
        self._munge(node)
        self._spawn(
            node.name, node, ["/usr/sbin/slurmd", "-D", "-f", str(self.conf), "-N", node.name]
        )

    def _munge(self, node: Node | None) -> None:
        """One munged per node: one for all would call half of what nodes say to each other
        replayed."""
        where = self.folder / "munge"
        argv = [
            "/usr/sbin/munged",
            "--foreground",
            "--force",
            f"--key-file={self._key}",
            "--num-threads=1",
        ]
        argv += [f"--{name}={where}/{file}" for name, file in _MUNGE_FILES.items()]
        self._spawn(f"munge-{node.name if node else 'controller'}", node, argv)
        mine = self.folder / f"own-{node.name}" / "munge" if node else where
        until((mine / "socket").exists, 60, f"munge in {mine}")

    def _spawn(self, name: str, node: Node | None, argv: Sequence[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TMPDIR"))}
        with (self.folder / f"daemons-{name}.log").open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            if node is None:
                process = subprocess.Popen(argv, env=environment, start_new_session=True, **streams)
            else:
                process = node.start("env", "-u", "TMPDIR", *argv, **streams)
        self._daemons.setdefault(name, []).append(process)

    def close(self) -> None:
        """Ends jobs, nodes and controller; the network removes the nodes."""
        with contextlib.suppress(Exception):
            if jobs := self.run("squeue", "-h", "-o", "%A").split():
                self.run("scancel", "--full", "--signal=KILL", *jobs, timeout=20)
        for node in self.nodes:
            with contextlib.suppress(Exception):
                node.kill()
        for name, processes in self._daemons.items():
            for process in processes:
                if name.endswith("controller"):
                    process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def run(
        self,
        *argv: str,
        timeout: float = 120,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> str:
        """What a command says on the login node. Raises `RuntimeError` when it fails."""
        its = (
            {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
            | self.environment
            | (env or {})
        )
        done = subprocess.run(
            argv, env=its, capture_output=True, text=True, timeout=timeout, cwd=cwd
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.returncode} {done.stdout} {done.stderr}")
        return done.stdout.strip()

    def wait_idle(self, timeout_s: float = 120) -> float:
        """Until every node is idle; returns how long that took, in seconds."""

        def idle() -> bool:
            with contextlib.suppress(RuntimeError):
                states = self.run("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split()
                return states == ["idle"] * len(self.nodes)
            return False

        return until(idle, timeout_s, f"idle nodes: {self.logs()}")

    def job(self, job: str) -> dict[str, str]:
        """What the controller knows of a job."""
        return dict(
            word.split("=", 1)
            for word in self.run("scontrol", "show", "job", "-o", job).split()
            if "=" in word
        )

    def wait_for(self, job: str, states: Sequence[str] = ENDED, timeout_s: float = 600) -> str:
        """Until the job has one of these states; returns it."""
        found = [""]

        def is_there() -> bool:
            with contextlib.suppress(RuntimeError):  # a controller that starts again
                found[0] = self.job(job)["JobState"]
            return found[0] in states

        until(is_there, timeout_s, f"job {job} as {', '.join(states)}")
        return found[0]

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.folder.glob("*.log"))
        )


_MUNGE_FILES = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _free_port() -> int:
    for port in PORTS:
        with contextlib.suppress(OSError), socket.create_server(("0.0.0.0", port)):
            return port
    raise RuntimeError("no port is free for slurmctld")


@contextlib.contextmanager
def slurm_cluster(nodes: int = 2, **options: Any) -> Iterator[SlurmCluster]:
    """A cluster of so many nodes, idle; `options`: of `SlurmCluster`."""
    with Network(nodes) as network:
        cluster = SlurmCluster(network, **options)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


if __name__ == "__main__":
    if missing := what_is_missing():
        sys.exit(missing)
    shared = [path for path in os.environ.get("SHARED", "").split(":") if path]
    fake = [int(count) for count in os.environ.get("GPUS", "").split(",") if count]
    began_s = time.monotonic()
    with slurm_cluster(int(sys.argv[1]), shared=shared, gpus=fake) as here:
        print(
            f"idle after {time.monotonic() - began_s:.1f} s, SLURM_CONF={here.conf}",
            file=sys.stderr,
            flush=True,
        )
        code = subprocess.run(
            sys.argv[2:] or ["bash"], env={**os.environ, **here.environment}
        ).returncode
    sys.exit(code)
