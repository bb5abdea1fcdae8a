"""Runs a command as if this process were that command, while a second process, the adviser, reads
its output. Imports the standard library only.

    this process    relays output and signals, and exits with the command's exit code or signal. Nothing else
    command         runs in this process's group, session and terminal, with its stdin, folder and environment; is killed if this process dies
    adviser         receives the output and sends lines to print on stderr. The command continues even if the adviser fails

The command must see the same kind of stdout and stderr as without autotune:

    regular file    the command writes to it directly; this process reads the file as it grows
    terminal        a pseudo-terminal of the same size in raw mode, so that bytes pass unchanged
    anything else   a pipe. If stdout and stderr were the same file, they share one pipe, which keeps their order

The terminal sends its signals to the command directly. This process forwards a signal from another
process, unless it was sent to the whole group. To find out, it asks the `witness`, an idle process
of the same group, whether it received the signal too. So the command receives each signal once.

Messages between this process and the adviser are packets on a socket pair. The first byte is the
kind:

    to the adviser      1, 2   output of that descriptor: 8 bytes arrival time (double, monotonic clock), then the output
                        3, 4   the same, after output that was dropped because the adviser was busy
                        S      the command has started: JSON      E   the command has ended: JSON
    from the adviser    L      a line for stderr                  R   the command may start       D   done
                        J      a part of the JSON document for stdout
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never, final

CHUNK = 1 << 16
"""bytes per read"""
BEFORE_S = 0.8
"""how long the command's start waits for the adviser's review, seconds"""
AFTER_S = 120.0
"""how long the exit waits for the adviser after the command has ended, seconds; a signal from the
user ends the wait"""
GROUP_S = 0.02
"""how long a signal to a process group may take to reach all of its processes, seconds, even if it
is sent to one after the other"""
ANSWER_S = 5.0
"""timeout of messages to the adviser and of the witness's answer, seconds"""
FOLLOW_S = 0.25
"""time between reads of a growing file, seconds"""
NICE = 10
"""nice value added to the adviser process"""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""the shell's exit codes for a command that cannot be started"""

_PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTSTP,
    }
    | set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
)
_HELD = _PASSED_ON | {signal.SIGWINCH, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE}
"""signals that this process blocks and handles in a thread"""
_FROM_A_PERSON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1

Adviser = Callable[[socket.socket], None]


def run_in_place(
    command: Sequence[str],
    adviser: Adviser,
    *,
    to_stderr: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Never:
    """Run the command, and exit with its exit code or signal. `adviser`: called in a separate
    process with its end of the socket pair; `to_stderr`: the command's stdout goes to stderr,
    because stdout is for the adviser's JSON document; `variables`: added to the command's
    environment."""
    _Place(tuple(command), to_stderr=to_stderr, variables=variables or {}).run(adviser)


def exec_in_place(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Never:
    """Replace this process by the command (`exec`)."""
    try:
        _exec(tuple(command), variables or {})
    except OSError as error:
        sys.exit(_exit_code_of(command[0], error.errno or errno.ENOENT))


def _exec(command: tuple[str, ...], variables: Mapping[str, str]) -> Never:
    """Execute the command with this process's original environment, to which Python may have
    added, and these variables."""
    # Python ignores these signals, and the command would inherit that
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    original = {
        os.fsencode(name): os.fsencode(value) for name, value in _original_environment().items()
    }
    added = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
    os.execvpe(command[0], command, {**original, **added})
    raise AssertionError("unreachable")


def _original_environment() -> Any:
    try:
        with open("/proc/self/environ", "rb") as file:
            block = file.read()
    except OSError:
        return os.environ
    return dict(entry.split(b"=", 1) for entry in block.split(b"\0") if b"=" in entry)


def _exit_code_of(program: str, code: int) -> int:
    print(f"autotune: {program}: {os.strerror(code)}", file=sys.stderr)
    return NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE


@dataclass(slots=True)
class _Stream:
    """An output of the command: relayed, or read from the file that the command writes."""

    kind: bytes
    """b"1" for stdout, b"2" for stderr"""
    source: int
    """descriptor to read from"""
    to: int
    """descriptor to relay to; -1: the command writes to its file directly"""
    at_line_start: bool = True


@final
class _Place:
    def __init__(
        self, command: tuple[str, ...], *, to_stderr: bool, variables: Mapping[str, str]
    ) -> None:
        self._command, self._variables = command, variables
        self._streams: list[_Stream] = []
        self._theirs = {1: 1, 2: 2}
        """the command's descriptors 1 and 2, each with the descriptor of this process it is copied
        from"""
        self._pty: tuple[int, int] | None = None
        self._out = 2 if to_stderr else 1
        self._lines: list[bytes] = []
        """lines from the adviser, printed as soon as the command's output is at a line start"""
        self._left_out = self._may_start = self._done = False
        self._last_signal: str = ""
        """name of the last signal from the user, such as SIGINT; empty without one"""
        self._answers: list[bytes] = []

    def run(self, adviser: Adviser) -> Never:
        for fd in (0, 1, 2):  # a closed one must not be reused for a pipe of this process
            try:
                os.fstat(fd)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        began_s = time.monotonic()
        witness_in, witness_out = self._fork_witness()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for side in (self._ours, theirs):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self._open_streams()
        go, failed = os.pipe(), os.pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            self._wait_and_exec(parent, go, failed[1])
        for ours in (*{fd for fd in self._theirs.values() if fd > 2}, go[0], failed[1]):
            os.close(ours)
        self._fork_adviser(adviser, theirs, go[1])
        theirs.close()
        self._receive_until(began_s + BEFORE_S)
        self._flush_lines(force=True)
        self._send(b"S", pid=child, started_s=time.time())
        os.write(go[1], b"g")
        os.close(go[1])
        if code := os.read(failed[0], 16):
            os.waitpid(child, 0)
            os._exit(_exit_code_of(self._command[0], int(code)))
        self._forward_signals(child, witness_in, witness_out)
        status, usage = self._relay(child)
        self._end(status, usage)

    def _fork_witness(self) -> tuple[int, int]:
        """Fork a process of this group that reports, when asked, which signals it has received.
        Returns the descriptors (to ask on, to read the answer from)."""
        asked, answers = os.pipe(), os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            _die_with_parent(parent)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.close(asked[1])
            while os.read(asked[0], 1):
                received = []
                while (info := signal.sigtimedwait(_PASSED_ON, 0)) is not None:
                    received.append(info.si_signo)
                os.write(answers[1], bytes([len(received), *received]))
            os._exit(0)
        os.close(asked[0])
        os.close(answers[1])
        return asked[1], answers[0]

    def _open_streams(self) -> None:
        places: dict[tuple[int, int, int], list[tuple[int, int, os.stat_result]]] = {}
        for fd in (1, 2):
            real = self._out if fd == 1 else 2
            with contextlib.suppress(OSError):  # a closed descriptor stays closed
                status = os.fstat(real)
                places.setdefault((status.st_dev, status.st_ino, status.st_rdev), []).append(
                    (fd, real, status)
                )
        for same in places.values():
            _, real, status = same[0]
            kind = str(same[0][0]).encode()
            if stat.S_ISREG(status.st_mode):
                for fd, its, _ in same:
                    self._theirs[fd] = its
                self._follow(kind, real)
                continue
            if os.isatty(real):
                source, sink = os.openpty()
                termios.tcsetattr(sink, termios.TCSANOW, termios.tcgetattr(real))
                tty.setraw(sink, termios.TCSANOW)
                self._pty = (source, real)
                self._copy_size()
            else:
                source, sink = os.pipe()
                with contextlib.suppress(OSError):
                    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, 1 << 20)
            for fd, _, _ in same:
                self._theirs[fd] = sink
            self._streams.append(_Stream(kind, source, real))

    def _follow(self, kind: bytes, real: int) -> None:
        with contextlib.suppress(OSError):
            source = os.open(f"/proc/self/fd/{real}", os.O_RDONLY)
            os.lseek(source, 0, os.SEEK_END)
            self._streams.append(_Stream(kind, source, -1))

    def _copy_size(self) -> None:
        if self._pty is not None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(self._pty[1], termios.TIOCGWINSZ, b"\0" * 8)
                fcntl.ioctl(self._pty[0], termios.TIOCSWINSZ, size)

    def _wait_and_exec(self, parent: int, go: tuple[int, int], failed: int) -> Never:
        try:
            os.close(go[1])
            _die_with_parent(parent)
            if not os.read(go[0], 1):
                os._exit(0)
            moved = [(fd, os.dup(source)) for fd, source in self._theirs.items() if source != fd]
            for fd, source in moved:
                os.dup2(source, fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            _exec(self._command, self._variables)
        except OSError as error:
            os.write(failed, str(error.errno or errno.ENOENT).encode())
        os._exit(NOT_FOUND)

    def _fork_adviser(self, adviser: Adviser, channel: socket.socket, go: int) -> None:
        parent = os.getpid()
        if os.fork() != 0:
            return
        with contextlib.suppress(BaseException):
            _die_with_parent(parent)
            os.close(go)
            self._ours.close()
            for stream in self._streams:
                os.close(stream.source)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # discard what libraries print
                os.dup2(null, fd)
            os.nice(NICE)
            _run_adviser(adviser, channel)
        os._exit(0)

    def _forward_signals(self, child: int, asks: int, answers: int) -> None:
        def wait() -> None:
            while True:
                info = signal.sigwaitinfo(_HELD)
                if info.si_signo == signal.SIGWINCH:
                    self._copy_size()
                elif info.si_signo in _PASSED_ON:
                    if info.si_signo in _FROM_A_PERSON:
                        self._last_signal = signal.Signals(info.si_signo).name
                    if (
                        info.si_code <= 0
                        and info.si_pid != child
                        and not group_has_got(info.si_signo)
                    ):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(child, info.si_signo)

        def group_has_got(number: int) -> bool:
            time.sleep(GROUP_S)
            with contextlib.suppress(OSError, IndexError):
                os.write(asks, b"?")
                if select.select([answers], [], [], ANSWER_S)[0]:
                    return number in os.read(answers, os.read(answers, 1)[0])
            return False

        threading.Thread(target=wait, daemon=True).start()

    def _relay(self, child: int) -> tuple[int, resource.struct_rusage]:
        """Relay output until the command has ended. Returns its wait status and resource usage."""
        ended = os.pipe()
        ended_with: list[tuple[int, resource.struct_rusage]] = []

        def wait() -> None:
            while True:
                _, status, usage = os.wait4(child, os.WUNTRACED)
                if not os.WIFSTOPPED(status):
                    break
                # the shell sees this process: it must stop and continue together with the command
                os.kill(os.getpid(), signal.SIGSTOP)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGCONT)
            ended_with.append((status, usage))
            os.close(ended[1])

        threading.Thread(target=wait, daemon=True).start()
        while ended[0] not in self._relay_ready([ended[0]], FOLLOW_S if self._has_files else None):
            pass
        while self._relay_ready([], 0.05):  # output from before the end
            pass
        return ended_with[0]

    @property
    def _has_files(self) -> bool:
        return any(stream.to < 0 for stream in self._streams)

    def _relay_ready(self, more: list[int], timeout_s: float | None) -> list[int]:
        """Relay available output and the adviser's lines. Returns the descriptors that were ready,
        without the adviser's and closed ones."""
        relayed = {stream.source: stream for stream in self._streams if stream.to >= 0}
        ours = [] if self._done else [self._ours.fileno()]
        ready = select.select([*relayed, *ours, *more], [], [], timeout_s)[0]
        others = [fd for fd in ready if fd not in relayed or self._relay_chunk(relayed[fd])]
        if self._ours.fileno() in ready:
            self._receive()
            others.remove(self._ours.fileno())
        for stream in self._streams:
            if stream.to < 0:
                while chunk := os.read(stream.source, CHUNK):
                    stream.at_line_start = chunk.endswith((b"\n", b"\r"))
                    self._forward(stream, chunk)
        self._flush_lines()
        return others

    def _relay_chunk(self, stream: _Stream) -> bool:
        try:
            chunk = os.read(stream.source, CHUNK)
        except OSError:  # the command's end of the pseudo-terminal is closed
            chunk = b""
        if chunk and _write(stream.to, chunk):
            stream.at_line_start = chunk.endswith((b"\n", b"\r"))
            self._forward(stream, chunk)
            return True
        # if the reader is gone, closing gives the command SIGPIPE, as without autotune
        os.close(stream.source)
        self._streams.remove(stream)
        return False

    def _forward(self, stream: _Stream, chunk: bytes) -> None:
        kind = {b"1": b"3", b"2": b"4"}[stream.kind] if self._left_out else stream.kind
        try:
            self._ours.send(
                kind + struct.pack("d", time.monotonic()) + chunk,
                socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
            )
            self._left_out = False
        except OSError:
            self._left_out = True

    def _send(self, kind: bytes, **values: Any) -> None:
        with contextlib.suppress(OSError):
            self._ours.settimeout(ANSWER_S)
            self._ours.send(kind + json.dumps(values).encode(), socket.MSG_NOSIGNAL)
            self._ours.settimeout(None)

    def _receive(self) -> None:
        try:
            message = self._ours.recv(CHUNK)
        except OSError:
            message = b""
        if message[:1] == b"L":
            self._lines.append(message[1:] + b"\n")
        elif message[:1] == b"J":
            self._answers.append(message[1:])
        self._may_start = self._may_start or message[:1] in (b"R", b"D", b"")
        self._done = self._done or message[:1] in (b"D", b"")

    def _receive_until(self, end_s: float, *, all_of_it: bool = False) -> None:
        while not (self._done if all_of_it else self._may_start):
            left_s = end_s - time.monotonic()
            if left_s <= 0 or (all_of_it and self._last_signal):
                return
            if select.select([self._ours], [], [], min(left_s, FOLLOW_S))[0]:
                self._receive()

    def _flush_lines(self, *, force: bool = False) -> None:
        """Print the adviser's lines, unless the command's output is inside a line. `force`: print
        them anyway, after a newline."""
        if not self._lines:
            return
        on_stderr = [
            stream for stream in self._streams if stream.kind == b"2" or len(self._streams) == 1
        ]
        is_inside = any(not stream.at_line_start for stream in on_stderr)
        if is_inside and not force:
            return
        _write(2, (b"\n" if is_inside else b"") + b"".join(self._lines))
        self._lines.clear()

    def _end(self, status: int, usage: resource.struct_rusage) -> Never:
        code = os.waitstatus_to_exitcode(status)
        values = {
            "code": code,
            "ended_s": time.time(),
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "last_signal": self._last_signal,
        }
        self._last_signal = ""
        if not self._done:
            self._send(b"E", **values)
            self._receive_until(time.monotonic() + AFTER_S, all_of_it=True)
            if not self._done:
                self._lines.append(b"autotune: the adviser gave no answer\n")
        self._flush_lines(force=True)
        if self._answers:
            _write(1, b"".join(self._answers))
        still_open = [stream for stream in self._streams if stream.to >= 0]
        if still_open and os.fork() == 0:
            self._relay_to_the_end(still_open)
        if code >= 0:
            os._exit(code)
        _die_by_signal(-code)

    def _relay_to_the_end(self, still_open: list[_Stream]) -> Never:
        """Relay the output of processes that the command left running, until all of them exit."""
        with contextlib.suppress(BaseException):
            os.setsid()
            self._ours.close()
            self._done = True
            self._streams = still_open
            while self._streams:
                self._relay_ready([], None)
        os._exit(0)


def _run_adviser(adviser: Adviser, channel: socket.socket) -> None:
    try:
        adviser(channel)
    except BaseException as error:
        text = " ".join(str(error).split())[:300]
        channel.send(
            f"Lautotune: advice failed, but the command did not: {type(error).__name__}: {text}".encode()
        )
    channel.send(b"D")


def _write(fd: int, data: bytes) -> bool:
    """Write all data. Returns False if the reader is gone."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True


def _die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent exits (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _die_by_signal(number: int) -> Never:
    """Die by the signal that killed the command, without a core dump of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)
