"""A command that runs in the place of this process, while another process, the adviser, hears what
it prints. Imports the standard library only.

    this process    passes output on, signals too, and ends as the command ends. It thinks about nothing
    command         is started in this process's group, session and terminal, with its stdin, folder and environment; dies with this process
    adviser         hears the output, and has its lines printed on stderr. Whatever becomes of it, the command goes on

Output goes the shortest way that a program cannot tell from the one that it had:

    regular file    stays the program's own, and is read as it grows
    terminal        a pseudo-terminal of the same size, raw, so that what is printed arrives as it is
    anything else   a pipe; stdout and stderr share one where they were one, so that their order stays

Signals of the terminal reach the command as they reach this process. One that another process sent
is passed on, unless the whole group got it: the `witness`, which is in the group and does nothing,
has got it then too. So a program hears each signal once.

Messages are packets on a pair of sockets; the first byte says what it is:

    to the adviser      1, 2   output of that stream: 8 bytes of the time of its arrival (double, monotonic clock), then the bytes
                        3, 4   the same, where something before it was left out: the adviser was busy
                        S      the command has started: JSON      E   it has ended: JSON
    from the adviser    L      a line for stderr                  R   the command may start       D   that was all
                        J      a part of the document for stdout
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
BEFORE_S = 0.8
"""time that the adviser gets before the command starts"""
AFTER_S = 120.0
"""time that it gets once the command has ended; a signal of a person ends it"""
GROUP_S = 0.02
"""time in which a signal to a group reaches all of its processes, also where they are sent to one
after the other"""
ANSWER_S = 5.0
FOLLOW_S = 0.25
"""time between two looks at a file that grows"""
NICE = 10
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""exit codes of shells"""

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
"""signals that do not end this process"""
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
    """Runs the command and ends as it does. `adviser`: runs in a process of its own with its end of
    the sockets; `to_stderr`: stdout is kept for the adviser's document, and the command's goes to
    stderr; `variables`: what its environment has besides the one that it was given."""
    _Place(tuple(command), to_stderr=to_stderr, variables=variables or {}).run(adviser)


def exec_in_place(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Never:
    """Becomes the command: nothing of this process is left."""
    try:
        _exec(tuple(command), variables or {})
    except OSError as error:
        sys.exit(_refused(command[0], error.errno or errno.ENOENT))


def _exec(command: tuple[str, ...], variables: Mapping[str, str]) -> Never:
    """The command in this process, with the environment that it was given and these variables:
    Python may have added to its own."""
    # Python ignores them, and an ignored signal stays ignored
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    given = {os.fsencode(name): os.fsencode(value) for name, value in _given_environment().items()}
    more = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
    os.execvpe(command[0], command, {**given, **more})
    raise AssertionError("unreachable")


def _given_environment() -> Any:
    try:
        with open("/proc/self/environ", "rb") as file:
            block = file.read()
    except OSError:
        return os.environ
    return dict(entry.split(b"=", 1) for entry in block.split(b"\0") if b"=" in entry)


def _refused(program: str, code: int) -> int:
    print(f"autotune: {program}: {os.strerror(code)}", file=sys.stderr)
    return NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE


@dataclass(slots=True)
class _Stream:
    """Output that is passed on, or followed in its file."""

    kind: bytes
    """1 or 2"""
    source: int
    """where it is read"""
    to: int
    """where it is passed on; -1: it is there already"""
    at_line_start: bool = True


@final
class _Place:
    def __init__(
        self, command: tuple[str, ...], *, to_stderr: bool, variables: Mapping[str, str]
    ) -> None:
        self._command, self._variables = command, variables
        self._streams: list[_Stream] = []
        self._theirs = {1: 1, 2: 2}
        """descriptors that the command's stdout and stderr are, and which of ours they become"""
        self._pty: tuple[int, int] | None = None
        self._out = 2 if to_stderr else 1
        self._lines: list[bytes] = []
        """of the adviser, which wait for the start of a line"""
        self._left_out = self._may_start = self._done = False
        self._told: str = ""
        """the signal of a person that the command got last"""
        self._answers: list[bytes] = []

    def run(self, adviser: Adviser) -> Never:
        for fd in (0, 1, 2):  # one that is closed must not become a pipe of ours
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
            self._be_the_command(parent, go, failed[1])
        for ours in (*{fd for fd in self._theirs.values() if fd > 2}, go[0], failed[1]):
            os.close(ours)
        self._fork_adviser(adviser, theirs, go[1])
        theirs.close()
        self._hear_until(began_s + BEFORE_S)
        self._flush_lines(force=True)
        self._tell(b"S", pid=child, started_s=time.time(), heard=len(self._streams))
        os.write(go[1], b"g")
        os.close(go[1])
        if code := os.read(failed[0], 16):
            os.waitpid(child, 0)
            os._exit(_refused(self._command[0], int(code)))
        self._pass_signals(child, witness_in, witness_out)
        status, usage = self._relay(child)
        self._end(status, usage)

    def _fork_witness(self) -> tuple[int, int]:
        """A process of the group that says, when asked, which signals it has got: (where it is
        asked, where it answers)."""
        asked, answers = os.pipe(), os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            _die_with(parent)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.close(asked[1])
            while os.read(asked[0], 1):
                got = []
                while (found := signal.sigtimedwait(_PASSED_ON, 0)) is not None:
                    got.append(found.si_signo)
                os.write(answers[1], bytes([len(got), *got]))
            os._exit(0)
        os.close(asked[0])
        os.close(answers[1])
        return asked[1], answers[0]

    def _open_streams(self) -> None:
        places: dict[tuple[int, int, int], list[tuple[int, int, os.stat_result]]] = {}
        for fd in (1, 2):
            real = self._out if fd == 1 else 2
            with contextlib.suppress(OSError):  # a closed descriptor stays closed
                found = os.fstat(real)
                places.setdefault((found.st_dev, found.st_ino, found.st_rdev), []).append(
                    (fd, real, found)
                )
        for same in places.values():
            _, real, found = same[0]
            kind = str(same[0][0]).encode()
            if stat.S_ISREG(found.st_mode):
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

    def _be_the_command(self, parent: int, go: tuple[int, int], failed: int) -> Never:
        try:
            os.close(go[1])
            _die_with(parent)
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

    def _fork_adviser(self, adviser: Adviser, its: socket.socket, go: int) -> None:
        parent = os.getpid()
        if os.fork() != 0:
            return
        with contextlib.suppress(BaseException):
            _die_with(parent)
            os.close(go)
            self._ours.close()
            for stream in self._streams:
                os.close(stream.source)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # what a library prints belongs to nobody
                os.dup2(null, fd)
            os.nice(NICE)
            _run_adviser(adviser, its)
        os._exit(0)

    def _pass_signals(self, child: int, asks: int, answers: int) -> None:
        def wait() -> None:
            while True:
                info = signal.sigwaitinfo(_HELD)
                if info.si_signo == signal.SIGWINCH:
                    self._copy_size()
                elif info.si_signo in _PASSED_ON:
                    if info.si_signo in _FROM_A_PERSON:
                        self._told = signal.Signals(info.si_signo).name
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
        """Passes output on until the command has ended: its status, and what it used."""
        ended = os.pipe()
        found: list[tuple[int, resource.struct_rusage]] = []

        def wait() -> None:
            while True:
                _, status, usage = os.wait4(child, os.WUNTRACED)
                if not os.WIFSTOPPED(status):
                    break
                os.kill(
                    os.getpid(), signal.SIGSTOP
                )  # as the command stopped, so does what stands for it; and goes on with it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGCONT)
            found.append((status, usage))
            os.close(ended[1])

        threading.Thread(target=wait, daemon=True).start()
        while ended[0] not in self._wait([ended[0]], FOLLOW_S if self._has_files else None):
            pass
        while self._wait([], 0.05):  # what it had printed before
            pass
        return found[0]

    @property
    def _has_files(self) -> bool:
        return any(stream.to < 0 for stream in self._streams)

    def _wait(self, also: list[int], timeout_s: float | None) -> list[int]:
        """Passes on what there is, the adviser's lines too; what was ready."""
        passed = {stream.source: stream for stream in self._streams if stream.to >= 0}
        ours = [] if self._done else [self._ours.fileno()]
        ready = select.select([*passed, *ours, *also], [], [], timeout_s)[0]
        found = [fd for fd in ready if fd not in passed or self._pass_on(passed[fd])]
        if self._ours.fileno() in ready:
            self._hear()
            found.remove(self._ours.fileno())
        for stream in self._streams:
            if stream.to < 0:
                while chunk := os.read(stream.source, CHUNK):
                    stream.at_line_start = chunk.endswith((b"\n", b"\r"))
                    self._advise(stream, chunk)
        self._flush_lines()
        return found

    def _pass_on(self, stream: _Stream) -> bool:
        try:
            chunk = os.read(stream.source, CHUNK)
        except OSError:  # a terminal that nobody holds any more
            chunk = b""
        if chunk and _write(stream.to, chunk):
            stream.at_line_start = chunk.endswith((b"\n", b"\r"))
            self._advise(stream, chunk)
            return True
        os.close(stream.source)  # nobody reads any more: the program hears of it as it would
        self._streams.remove(stream)
        return False

    def _advise(self, stream: _Stream, chunk: bytes) -> None:
        kind = {b"1": b"3", b"2": b"4"}[stream.kind] if self._left_out else stream.kind
        try:
            self._ours.send(
                kind + struct.pack("d", time.monotonic()) + chunk,
                socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
            )
            self._left_out = False
        except OSError:
            self._left_out = True

    def _tell(self, kind: bytes, **values: Any) -> None:
        with contextlib.suppress(OSError):
            self._ours.settimeout(ANSWER_S)
            self._ours.send(kind + json.dumps(values).encode(), socket.MSG_NOSIGNAL)
            self._ours.settimeout(None)

    def _hear(self) -> None:
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

    def _hear_until(self, end_s: float, *, all_of_it: bool = False) -> None:
        while not (self._done if all_of_it else self._may_start):
            left_s = end_s - time.monotonic()
            if left_s <= 0 or (all_of_it and self._told):
                return
            if select.select([self._ours], [], [], min(left_s, FOLLOW_S))[0]:
                self._hear()

    def _flush_lines(self, *, force: bool = False) -> None:
        """Prints the adviser's lines where a line begins."""
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
            "told": self._told,
        }
        self._told = ""
        if not self._done:
            self._tell(b"E", **values)
            self._hear_until(time.monotonic() + AFTER_S, all_of_it=True)
            if not self._done:
                self._lines.append(b"autotune: the adviser gave no answer\n")
        self._flush_lines(force=True)
        if self._answers:
            _write(1, b"".join(self._answers))
        left = [stream for stream in self._streams if stream.to >= 0]
        if left and os.fork() == 0:
            self._go_on(left)
        if code >= 0:
            os._exit(code)
        _die_of(-code)

    def _go_on(self, left: list[_Stream]) -> Never:
        """What the command left behind prints on: this process passes it on to its end."""
        with contextlib.suppress(BaseException):
            os.setsid()
            self._ours.close()
            self._done = True
            self._streams = left
            while self._streams:
                self._wait([], None)
        os._exit(0)


def _run_adviser(adviser: Adviser, its: socket.socket) -> None:
    try:
        adviser(its)
    except BaseException as error:
        text = " ".join(str(error).split())[:300]
        its.send(
            f"Lautotune: advice failed, but the command did not: {type(error).__name__}: {text}".encode()
        )
    its.send(b"D")


def _write(fd: int, data: bytes) -> bool:
    """Whether somebody takes it all."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True


def _die_with(parent: int) -> None:
    """Has the kernel end this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _die_of(number: int) -> Never:
    """Ends as the command did, without a core of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)
