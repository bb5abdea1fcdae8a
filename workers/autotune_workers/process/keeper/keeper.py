"""The keeper: a process between a runner and somebody's program. It starts the program, passes its
log on, and nothing that the program starts outlives it.

Launchers such as torchrun put their ranks into sessions of their own, where no signal to the
program's group reaches them. So this process adopts every orphan below it (`PR_SET_CHILD_SUBREAPER`
of prctl(2)), knows all descendants by their parents, and ends them all: when the program has ended,
when it is told to, when its owner is gone, when it gets SIGTERM, and when the owner's lease runs
out. With `--detach` it forks away from whoever starts it, because Ray kills the direct children of
an actor before they could end anything; process 1 reaps it then. It imports the standard library
only, until a log gets so long that step lines must be told from others, and starts in milliseconds.

    owner -> keeper   {"command": "start", "argv": [...], "env": {...}, "cwd": PATH, "files": {NAME: TEXT}, "folder_word": W,
                       "remove": [PATH, ...], "user": NAME, "lease_s": S, "trainer": NAME, "options": {...}, "meets_at": ADDRESS,
                       "outputs": NAME, "watched": BOOL, "keeps_files": BOOL}
                      {"command": "alive"}   {"command": "end", "hung": BOOL}   the end of the channel means `end` too
    keeper -> owner   {"event": "keeper", "pid": N}, then as in `program.places`: started or refused, lines and probe, at last ended, or gone after SIGTERM

`files` are written into a temporary folder, the trial's own, whose path takes the place of
`folder_word` in arguments and variables, and in which the program runs where `cwd` is empty, and
stands in the files, too; what it writes belongs into the folder `outputs` there. `watched`: whether
the probe looks at it (`autotune_workers.probe`); `keeps_files`: whether files that were there
before are put back when it has written others in their place, which only a program of our own user
can be helped with. `remove`: folders that are removed at the end. `user`: as whom the program runs;
empty: our own. `lease_s`: without `alive` for so long everything ends; it is counted in rounds of
the loop, so that the time for which this machine stood still counts as one round. Without it there
is no lease. `meets_at`: the address of this node at which the nodes of the program meet; gloo is
told the interface that holds it. `trainer` and its `options`: whose step lines are told from others
where the log is too long. `hung`: the ranks of the program are asked first which collectives they
had begun (`flight_recorder`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune_workers.probe.probe_folder import (
    ProbeFolder,
    is_off,
    launch_folder,
    put_back_abandoned,
)
from autotune_workers.process.failure import flight_recorder
from autotune_workers.process.keeper.log import LogReader, Outbox, StepTest, widen
from autotune_workers.process.machine import (
    GpuMemory,
    adopt_orphans,
    be_expendable,
    descendants,
    die_with_parent,
    interface_of,
    oom_kills,
    status_bytes,
)
from autotune_workers.process.program import account as program_account

GRACE_S = 3.0
"""time between SIGTERM to the program's process group and SIGKILL to all that it started"""
LEFTOVERS_S = 0.5
"""time that processes get which a program leaves running when it ends"""
TRIAL_DIR = "AUTOTUNE_TRIAL_DIR"
"""the variable that tells a program the folder of its trial, for what it writes"""
WAIT_S = 1.0
"""time between two looks whether SIGTERM has come while there is no order"""
LOOK_S = 0.2
"""time between two readings of the process table; the longest round of the loop"""
TERMINATED = "the process that watches it received SIGTERM"
GONE_S = 20.0
"""time that the system gets to end what was killed"""
LOG_END_S = 10.0
"""time to read the rest of the log once nothing is left that writes it"""
TOLD_S = 600.0
"""time that a busy owner gets to read the last message"""


def main() -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="autotune-keeper")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--detach", action="store_true", help="become nobody's child")
    arguments = parser.parse_args()
    owner = socket.socket(fileno=arguments.fd)
    if arguments.detach and os.fork():
        os._exit(0)
    owner.set_inheritable(False)
    adopt_orphans()
    outbox = Outbox(owner)
    outbox.send({"event": "keeper", "pid": os.getpid()})
    commands = _Commands(owner)
    signal.signal(signal.SIGTERM, commands.terminate)
    while not (commands.closed or commands.terminated) and commands.order is None:
        select.select([owner], [], [], WAIT_S)
        commands.read()
    if commands.order is not None:
        if not commands.end:
            _Keeper(commands, outbox).run(commands.order)
        _remove(*commands.order["remove"])
    outbox.drain(TOLD_S)


class _Commands:
    """What the owner says."""

    def __init__(self, owner: socket.socket) -> None:
        self.channel = owner
        self.order: dict[str, Any] | None = None
        self.alive = self.end = self.closed = self.hung = self.terminated = False
        self._rest = b""

    def terminate(self, *_: object) -> None:
        """SIGTERM: whoever runs this machine wants all to end."""
        self.end = self.terminated = True

    def read(self) -> None:
        """Takes what has arrived."""
        try:
            chunk = self.channel.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self.closed = self.closed or not chunk
        self.end = self.end or self.closed
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for message in map(json.loads, filter(None, lines)):
            command = message["command"]
            self.alive = self.alive or command == "alive"
            self.end = self.end or command == "end"
            self.hung = self.hung or bool(message.get("hung"))
            if command == "start":
                self.order = message


class _Keeper:
    def __init__(self, commands: _Commands, outbox: Outbox) -> None:
        self._commands, self._outbox = commands, outbox
        self._peak = 0
        self._code: int | None = None
        self._gpus = GpuMemory()
        self._probe: ProbeFolder | None = None

    def run(self, order: Mapping[str, Any]) -> None:
        """Runs the program to its end."""
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        kills, folder, records = oom_kills(), "", ""
        log, sink = os.pipe2(os.O_CLOEXEC)
        widen(log)
        try:
            folder = str(launch_folder().path)
            _write(
                {
                    name: text.replace(order["folder_word"], folder)
                    for name, text in order["files"].items()
                },
                folder,
            )
            os.mkdir(os.path.join(folder, order["outputs"]))
            records = os.path.join(folder, ".flight-recorder")
            os.mkdir(records)
            who = program_account.account(order["user"])
            variables = {
                **flight_recorder.variables(records, order["env"]),
                **self._watched(order, folder, who),
            }
            variables |= _interface(order)
            program_account.hand_over(who, folder, *self._probes, *order["remove"])
            program = _started(order, folder, sink, variables, who)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason = _refusal(order, folder, error)
            _remove(folder, *self._probes)
            self._outbox.send({"event": "refused", "reason": reason})
            return
        finally:
            os.close(sink)
        gpus = order["env"].get("CUDA_VISIBLE_DEVICES")
        where = {"hostname": socket.gethostname(), "gpus": gpus.split(",") if gpus else []}
        self._outbox.send(
            {"event": "started", "pid": program.pid, "program": order["argv"][0], **where}
        )
        self._gpus.begin(gpus)
        reader = LogReader(
            log, self._outbox, lambda: _step_line_test(order["trainer"], order["options"])
        )
        reader.start()
        self._wait(program.pid, woken, order.get("lease_s"))
        begun = (
            flight_recorder.collectives_begun(records)
            if self._commands.hung and self._code is None
            else {}
        )
        self._end(program.pid, GRACE_S if self._code is None else LEFTOVERS_S)
        reader.join(LOG_END_S)
        self._hear_probe(is_last=True)
        _remove(folder, *self._probes)
        if self._commands.terminated:
            self._outbox.send({"event": "gone", "why": TERMINATED, "terminated": True})
            return
        self._outbox.send({
            "event": "ended",
            "code": self._code,
            "peak_bytes": self._peak,
            "gpu_peak_bytes": self._gpus.peak_bytes,
            "kernel_oom": oom_kills() > kills,
            "left": self._living(),
            "collectives": begun,
        })  # fmt: skip

    def _wait(self, program: int, woken: int, lease_s: float | None) -> None:
        """Until the program ends by itself, or the owner wants its end, is gone, or has not renewed
        its lease."""
        unrenewed_s, round_s = 0.0, time.monotonic()
        while self._code is None and not self._commands.end:
            channel = self._commands.channel
            waiting: list[Any] = [channel, woken]
            readable, _, _ = select.select(
                waiting, [channel] if self._outbox.is_full else [], [], LOOK_S
            )
            if woken in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            if channel in readable:
                self._commands.read()
            self._outbox.flush()
            self._living()
            self._hear_probe()
            self._reap(program)
            now_s = time.monotonic()
            unrenewed_s = (
                0.0 if self._commands.alive else unrenewed_s + min(now_s - round_s, 2 * LOOK_S)
            )
            self._commands.alive, round_s = False, now_s
            if lease_s is not None and unrenewed_s >= lease_s:
                return

    def _watched(
        self, order: Mapping[str, Any], folder: str, who: pwd.struct_passwd | None
    ) -> dict[str, str]:
        """What the program's environment gets so that it is watched, and knows its own folder."""
        outputs = os.path.join(folder, order["outputs"])
        if not order["watched"] or is_off(order["env"]):
            return {TRIAL_DIR: outputs}
        lost = put_back_abandoned()  # before this attempt keeps the same files
        if lost:
            self._outbox.send({"event": "probe", "reports": [{"kind": "lost", "files": lost}]})
        self._probe = ProbeFolder()
        return self._probe.variables(
            order["env"],
            trial_folder=outputs,
            keeps_files=order["keeps_files"] and who is None,
            has_several_nodes=bool(order["meets_at"]),
        )

    @property
    def _probes(self) -> list[str]:
        return [str(self._probe.path)] if self._probe is not None else []

    def _hear_probe(self, *, is_last: bool = False) -> None:
        """Passes on what the probe reports; at last, when nothing of the program is left, puts the
        user's files back."""
        if self._probe is None or (self._outbox.is_behind and not is_last):
            return
        reports = self._probe.read()
        while reports:
            self._outbox.send({"event": "probe", "reports": reports})
            reports = self._probe.read() if is_last else []
        if is_last and (lost := self._probe.put_back()):
            self._outbox.send({"event": "probe", "reports": [{"kind": "lost", "files": lost}]})

    def _end(self, program: int, grace_s: float) -> None:
        """SIGTERM to the program's group (or to what it left behind), SIGKILL to whatever is there
        after `grace_s`, until nothing is."""
        began_s = time.monotonic()
        self._note_open(self._living())
        if self._code is None:
            _signal(os.killpg, program, signal.SIGTERM)
        else:
            for pid in self._living():
                _signal(os.kill, pid, signal.SIGTERM)
        while (living := self._living()) and (
            waited_s := time.monotonic() - began_s
        ) < grace_s + GONE_S:
            if waited_s >= grace_s:
                self._note_open(living)
                for pid in living:
                    _signal(os.kill, pid, signal.SIGKILL)
            self._reap(program)
            self._outbox.flush()
            time.sleep(0.02)
        self._reap(program)

    def _note_open(self, living: list[int]) -> None:
        if self._probe is not None:
            self._probe.note_open(living)

    def _reap(self, program: int) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == program:
                    self._code = os.waitstatus_to_exitcode(ended[1])

    def _living(self) -> list[int]:
        """All living descendants; takes note of their memory."""
        living = descendants(os.getpid())
        self._peak = max([self._peak, *(status_bytes("VmHWM", pid) or 0 for pid in living)])
        self._gpus.look(living)
        return living


def _step_line_test(trainer: str, options: Mapping[str, Any]) -> StepTest:
    """How this trainer tells its step lines. Imported late: most programs never print so much that
    lines have to be left out."""
    from autotune.trainers import trainer as trainer_named

    test = trainer_named(trainer).step_line_test(options)
    return StepTest.of(test.may_tell, test.marks)


def _write(files: Mapping[str, str], folder: str) -> None:
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _started(
    order: Mapping[str, Any],
    folder: str,
    sink: int,
    variables: Mapping[str, str],
    who: pwd.struct_passwd | None,
) -> subprocess.Popen[bytes]:
    keeper, word = os.getpid(), order["folder_word"]
    given = {
        name: text.replace(word, folder) for name, text in {**order["env"], **variables}.items()
    }
    return subprocess.Popen(
        [argument.replace(word, folder) for argument in order["argv"]],
        env=program_account.variables_of(who, given),
        cwd=order["cwd"] or folder or None,
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=sink,
        start_new_session=True,
        preexec_fn=lambda: _begin(keeper, who),
    )


def _interface(order: Mapping[str, Any]) -> dict[str, str]:
    """Which interface gloo shall use, unless the program's variables say it."""
    if not order["meets_at"] or "GLOO_SOCKET_IFNAME" in order["env"]:
        return {}
    name = interface_of(order["meets_at"])
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def _remove(*folders: str) -> None:
    for folder in filter(None, folders):
        shutil.rmtree(folder, ignore_errors=True)


def _refusal(order: Mapping[str, Any], folder: str, error: Exception) -> str:
    """Why the program cannot be started here, in words."""
    cwd, program = order["cwd"] or folder, order["argv"][0]
    if cwd and not os.path.isdir(cwd):
        return (
            f"there is no folder {cwd!r} on {socket.gethostname()}; "
            "set trainer.cwd to a folder that every node has, or send the folder with trainer.working_dir: upload"
        )
    if not os.path.exists(os.path.join(cwd, program)):
        return (
            f"there is no program {program!r} on {socket.gethostname()}; "
            "set trainer.python to an interpreter or environment that every node has"
        )
    return f"{type(error).__name__}: {error}"


def _begin(keeper: int, who: pwd.struct_passwd | None) -> None:
    be_expendable()
    program_account.become(who)
    die_with_parent(keeper)  # last: the kernel forgets it when the user changes


def _signal(kill: Callable[[int, int], None], number: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(number, what)


if __name__ == "__main__":
    main()
