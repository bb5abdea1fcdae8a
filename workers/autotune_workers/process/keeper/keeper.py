"""The keeper: a process between a runner and a user's program. It starts the program, forwards its
log, and makes sure that no process started by the program outlives it.

Launchers such as torchrun put their ranks into sessions of their own, where no signal to the
program's process group reaches them. So the keeper is a subreaper (`PR_SET_CHILD_SUBREAPER` of
prctl(2)): it becomes the parent of orphaned descendants, finds all descendants by their parents,
and ends them when the program has ended, on the command `end`, when its owner is gone, on SIGTERM,
or when the owner's lease expires. With `--detach` it forks away from its starter and is later
reaped by process 1, because Ray kills the direct children of an actor before they can end anything.
It starts in milliseconds because it imports the standard library only, until a log gets so long
that step lines must be separated from others.

    owner -> keeper   {"command": "start", "argv": [...], "env": {...}, "cwd": PATH, "files": {NAME: TEXT}, "folder_word": W,
                       "remove": [PATH, ...], "user": NAME, "lease_s": S, "trainer": NAME, "options": {...}, "meets_at": ADDRESS,
                       "outputs": NAME, "watched": BOOL, "keeps_files": BOOL}
                      {"command": "alive"}   {"command": "end", "hung": BOOL}   a closed channel means `end` too
    keeper -> owner   {"event": "keeper", "pid": N}, then as in `program.places`: started or refused, lines and probe, at last ended, or gone after SIGTERM

`files` are written into a temporary folder of the trial. The folder's path replaces `folder_word`
in arguments, variables and the files themselves. The program runs there if `cwd` is empty, and its
own output belongs in the folder `outputs` there. `watched`: whether the probe observes the program
(`autotune_workers.probe`). `keeps_files`: whether existing files that the program overwrites are
restored afterwards; only possible for programs that run as the keeper's user. `remove`: folders to
delete at the end. `user`: account to run the program as; empty: the keeper's. `lease_s`: everything
ends after this time without `alive`; null: no lease. It is counted in rounds of the loop, so that a
suspension of this machine counts as one round only. `meets_at`: address of this node for
communication between nodes; gloo is set to the interface that has it. `trainer`, `options`: define
which lines are step lines, if the log is too long to forward. `hung`: read NCCL's flight recorder
first, which shows the collectives that each rank had begun (`flight_recorder`).
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
"""seconds between SIGTERM to the program's process group and SIGKILL to all its processes"""
LEFTOVERS_S = 0.5
"""seconds between SIGTERM and SIGKILL for processes left behind by a program that has ended"""
TRIAL_DIR = "AUTOTUNE_TRIAL_DIR"
"""environment variable with the trial's output folder"""
WAIT_S = 1.0
"""interval of checks for SIGTERM while waiting for the order, seconds"""
LOOK_S = 0.2
"""interval of readings of the process table, and longest round of the loop, seconds"""
TERMINATED = "the process that watches it received SIGTERM"
GONE_S = 20.0
"""longest wait for killed processes to disappear, seconds"""
LOG_END_S = 10.0
"""longest time to read the rest of the log after the last process has ended, seconds"""
TOLD_S = 600.0
"""longest wait for a busy owner to read the last message, seconds"""


def main() -> None:
    """Entry point of the keeper process."""
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
    """Commands received from the owner."""

    def __init__(self, owner: socket.socket) -> None:
        self.channel = owner
        self.order: dict[str, Any] | None = None
        self.alive = self.end = self.closed = self.hung = self.terminated = False
        self._rest = b""

    def terminate(self, *_: object) -> None:
        """Handler of SIGTERM: ends the program, then the keeper."""
        self.end = self.terminated = True

    def read(self) -> None:
        """Reads the commands that have arrived, without waiting."""
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
        """Runs the program until it and all its processes have ended, and reports to the owner."""
        wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_writer)
        kills_before, folder, recorder_folder = oom_kills(), "", ""
        log_reader, log_writer = os.pipe2(os.O_CLOEXEC)
        widen(log_reader)
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
            recorder_folder = os.path.join(folder, ".flight-recorder")
            os.mkdir(recorder_folder)
            account = program_account.account(order["user"])
            variables = {
                **flight_recorder.variables(recorder_folder, order["env"]),
                **self._watched(order, folder, account),
            }
            variables |= _interface(order)
            program_account.hand_over(account, folder, *self._probes, *order["remove"])
            program = _started(order, folder, log_writer, variables, account)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason = _refusal(order, folder, error)
            _remove(folder, *self._probes)
            self._outbox.send({"event": "refused", "reason": reason})
            return
        finally:
            os.close(log_writer)
        gpus = order["env"].get("CUDA_VISIBLE_DEVICES")
        placement = {"hostname": socket.gethostname(), "gpus": gpus.split(",") if gpus else []}
        self._outbox.send(
            {"event": "started", "pid": program.pid, "program": order["argv"][0], **placement}
        )
        self._gpus.begin(gpus)
        reader = LogReader(
            log_reader, self._outbox, lambda: _step_line_test(order["trainer"], order["options"])
        )
        reader.start()
        self._wait(program.pid, wake_reader, order.get("lease_s"))
        collectives = (
            flight_recorder.collectives_begun(recorder_folder)
            if self._commands.hung and self._code is None
            else {}
        )
        self._end(program.pid, GRACE_S if self._code is None else LEFTOVERS_S)
        reader.join(LOG_END_S)
        self._forward_probe(is_last=True)
        _remove(folder, *self._probes)
        if self._commands.terminated:
            self._outbox.send({"event": "gone", "why": TERMINATED, "terminated": True})
            return
        self._outbox.send({
            "event": "ended",
            "code": self._code,
            "peak_bytes": self._peak,
            "gpu_peak_bytes": self._gpus.peak_bytes,
            "kernel_oom": oom_kills() > kills_before,
            "left": self._living_descendants(),
            "collectives": collectives,
        })  # fmt: skip

    def _wait(self, program: int, wake_reader: int, lease_s: float | None) -> None:
        """Returns when the program has ended, the owner orders its end or is gone, or the lease
        expires."""
        unrenewed_s, round_s = 0.0, time.monotonic()
        while self._code is None and not self._commands.end:
            channel = self._commands.channel
            waiting: list[Any] = [channel, wake_reader]
            readable, _, _ = select.select(
                waiting, [channel] if self._outbox.is_full else [], [], LOOK_S
            )
            if wake_reader in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_reader, 4096)
            if channel in readable:
                self._commands.read()
            self._outbox.flush()
            self._living_descendants()
            self._forward_probe()
            self._reap(program)
            now_s = time.monotonic()
            unrenewed_s = (
                0.0 if self._commands.alive else unrenewed_s + min(now_s - round_s, 2 * LOOK_S)
            )
            self._commands.alive, round_s = False, now_s
            if lease_s is not None and unrenewed_s >= lease_s:
                return

    def _watched(
        self, order: Mapping[str, Any], folder: str, account: pwd.struct_passwd | None
    ) -> dict[str, str]:
        """Variables that make the probe observe the program, and that name its output folder."""
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
            keeps_files=order["keeps_files"] and account is None,
            has_several_nodes=bool(order["meets_at"]),
        )

    @property
    def _probes(self) -> list[str]:
        return [str(self._probe.path)] if self._probe is not None else []

    def _forward_probe(self, *, is_last: bool = False) -> None:
        """Forwards the probe's reports. `is_last`: no process of the program is left, so the user's
        files are restored as well."""
        if self._probe is None or (self._outbox.is_behind and not is_last):
            return
        reports = self._probe.read()
        while reports:
            self._outbox.send({"event": "probe", "reports": reports})
            reports = self._probe.read() if is_last else []
        if is_last and (lost := self._probe.put_back()):
            self._outbox.send({"event": "probe", "reports": [{"kind": "lost", "files": lost}]})

    def _end(self, program: int, grace_s: float) -> None:
        """Sends SIGTERM to the program's process group (or to the processes it left behind), and
        SIGKILL after `grace_s` until no process is left or `GONE_S` is over."""
        began_s = time.monotonic()
        self._note_open_files(self._living_descendants())
        if self._code is None:
            _signal(os.killpg, program, signal.SIGTERM)
        else:
            for pid in self._living_descendants():
                _signal(os.kill, pid, signal.SIGTERM)
        while (living := self._living_descendants()) and (
            waited_s := time.monotonic() - began_s
        ) < grace_s + GONE_S:
            if waited_s >= grace_s:
                self._note_open_files(living)
                for pid in living:
                    _signal(os.kill, pid, signal.SIGKILL)
            self._reap(program)
            self._outbox.flush()
            time.sleep(0.02)
        self._reap(program)

    def _note_open_files(self, living: list[int]) -> None:
        if self._probe is not None:
            self._probe.note_open(living)

    def _reap(self, program: int) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == program:
                    self._code = os.waitstatus_to_exitcode(ended[1])

    def _living_descendants(self) -> list[int]:
        """Process numbers of all living descendants. Updates the memory peaks."""
        living = descendants(os.getpid())
        self._peak = max([self._peak, *(status_bytes("VmHWM", pid) or 0 for pid in living)])
        self._gpus.look(living)
        return living


def _step_line_test(trainer: str, options: Mapping[str, Any]) -> StepTest:
    """The trainer's test for step lines. Imported late, because few programs print so much that
    lines are left out."""
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
    log_writer: int,
    variables: Mapping[str, str],
    account: pwd.struct_passwd | None,
) -> subprocess.Popen[bytes]:
    keeper_pid, word = os.getpid(), order["folder_word"]
    environment = {
        name: text.replace(word, folder) for name, text in {**order["env"], **variables}.items()
    }
    return subprocess.Popen(
        [argument.replace(word, folder) for argument in order["argv"]],
        env=program_account.variables_of(account, environment),
        cwd=order["cwd"] or folder or None,
        stdin=subprocess.DEVNULL,
        stdout=log_writer,
        stderr=log_writer,
        start_new_session=True,
        preexec_fn=lambda: _prepare_child(keeper_pid, account),
    )


def _interface(order: Mapping[str, Any]) -> dict[str, str]:
    """The variable that sets gloo's network interface, unless the program's variables set it; may
    be empty."""
    if not order["meets_at"] or "GLOO_SOCKET_IFNAME" in order["env"]:
        return {}
    name = interface_of(order["meets_at"])
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def _remove(*folders: str) -> None:
    for folder in filter(None, folders):
        shutil.rmtree(folder, ignore_errors=True)


def _refusal(order: Mapping[str, Any], folder: str, error: Exception) -> str:
    """Why the program cannot be started here, as a message."""
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


def _prepare_child(keeper_pid: int, account: pwd.struct_passwd | None) -> None:
    be_expendable()
    program_account.become(account)
    die_with_parent(keeper_pid)  # last: the kernel forgets it when the user changes


def _signal(kill: Callable[[int, int], None], number: int, signal_number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(number, signal_number)


if __name__ == "__main__":
    main()
