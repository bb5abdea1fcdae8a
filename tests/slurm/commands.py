"""Slurm's commands as programs of this machine: every node of the job is here. What a real Slurm
does is tried in `test_stories`.

    srun        starts its program once for each host of --nodelist, in a container with an environment that knows nothing of ours
    scancel     signals a step's processes          scontrol, squeue     say what the runner asks

A host whose file `down-HOST` lies in the folder starts nothing, and its srun never ends, as with a
node that lost its power. With a file `away` the controller does not answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

SRUN = """
import os, signal, subprocess, sys
folder, words = os.path.dirname(sys.argv[0]), sys.argv[1:]
options = {}
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    options[name] = value
step = str(os.getpid())
mine = {"PATH": "/usr/bin:/bin", "SRUN_IMAGE": options["--container-image"]} if "--container-image" in options else {}
if os.path.exists(f"{folder}/away"):
    sys.exit("srun: error: Unable to contact slurm controller (connect failure)")
tasks = []
for host in options["--nodelist"].split(","):
    told = {"SLURMD_NODENAME": host, "SLURM_STEP_ID": step, "SLURM_STEP_NUM_NODES": "1", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_NTASKS": "2"}
    known = {k: v for k, v in os.environ.items() if not mine or k.startswith(("AUTOTUNE_KEEPER", "SLURM", "LANG", "HOME"))}
    argv = ["sleep", "1000"] if os.path.exists(f"{folder}/down-{host}") else words
    tasks.append(subprocess.Popen(argv, env={**known, **told, **mine}, start_new_session=True))
with open(f"{folder}/step-{step}", "w") as file:
    print(*[task.pid for task in tasks], file=file)
ended = []
def pass_on(number, _):
    ended.append(number)
    for task in tasks:
        if task.poll() is None:
            os.killpg(task.pid, number)
signal.signal(signal.SIGTERM, pass_on)
codes = [task.wait() for task in tasks]
for host, code in zip(options["--nodelist"].split(","), codes):
    if code:
        print(f"srun: error: {host}: task: Exited with exit code {code}", file=sys.stderr)
sys.exit(128 + ended[0] if ended else max(abs(code) for code in codes))
"""
SCANCEL = """
import os, sys
folder = os.path.dirname(sys.argv[0])
number, step = sys.argv[1].partition("=")[2], sys.argv[2].partition(".")[2]
with open(f"{folder}/scancel.log", "a") as log:
    print(*sys.argv[1:], file=log)
for pid in open(f"{folder}/step-{step}").read().split():
    try:
        os.killpg(int(pid), {"KILL": 9, "TERM": 15}[number])
    except ProcessLookupError:
        pass
"""
SCONTROL = """
import os, sys
if sys.argv[1] == "requeue":
    open(os.path.dirname(sys.argv[0]) + "/requeued", "a").write(sys.argv[2])
print(*sys.argv[-1].split(","), sep="\\n")
"""


def commands(folder: Path) -> str:
    """A folder for PATH with commands of Slurm's names."""
    for name, text in {
        "srun": SRUN,
        "scancel": SCANCEL,
        "scontrol": SCONTROL,
        "squeue": "print('UNLIMITED')",
    }.items():
        (folder / name).write_text(
            f"#!{sys.executable} -SE{text if text.startswith(chr(10)) else chr(10) + text}"
        )
        (folder / name).chmod(0o755)
    return str(folder)


def job(folder: Path, hosts: Sequence[str]) -> dict[str, str]:
    """The variables of a job on these hosts, for a process on the first."""
    return {
        "PATH": f"{commands(folder)}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "SLURM_JOB_NUM_NODES": str(len(hosts)),
        "SLURM_JOB_CPUS_PER_NODE": f"4(x{len(hosts)})",
        "SLURMD_NODENAME": hosts[0],
    }
