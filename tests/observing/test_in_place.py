"""A command runs in the place of autotune as if autotune was not there: output byte for byte, exit
code, signals, terminal, stdin, environment."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autotune.observing.rank import is_first, leftover

LONG_S = 120.0
QUIET = "lambda channel: None"
TALKATIVE = "lambda channel: (channel.send(b'Lautotune: before'), channel.send(b'R'), until_the_end(channel), channel.send(b'Lautotune: after'))"
ADVISERS = {
    "quiet": QUIET,
    "talkative": TALKATIVE,
    "broken": "lambda channel: 1 / 0",
    "killed": "lambda channel: __import__('os').kill(__import__('os').getpid(), 9)",
}
_START = """
import sys
from autotune.observing.in_place import run_in_place

def until_the_end(channel):
    while channel.recv(1 << 17)[:1] != b"E":
        pass

run_in_place(sys.argv[1:], {adviser})
"""


def in_place(command: Sequence[str], adviser: str = QUIET) -> list[str]:
    """The command under autotune, with that adviser."""
    return [sys.executable, "-c", _START.format(adviser=adviser), *command]


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def ran(command: Sequence[str], stdin: bytes = b"", **options: object) -> tuple[bytes, bytes, int]:
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=LONG_S, check=False, **options
    )  # type: ignore[call-overload]
    return done.stdout, done.stderr, done.returncode


def theirs(text: bytes) -> bytes:
    """Without our lines."""
    return b"".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(b"autotune: ")
    )


FLOOD = "import os\nfor n in range(64): os.write(1, bytes(range(256)) * 256); os.write(2, b'e' * 999 + b'\\n')"
COMMANDS: dict[str, list[str]] = {
    "well": ["sh", "-c", "echo out; echo err >&2"],
    "exit code": ["sh", "-c", "echo last words; exit 3"],
    "SIGKILL": ["sh", "-c", "echo a; kill -9 $$"],
    "SIGTERM": ["sh", "-c", "kill -TERM $$"],
    "SIGSEGV": ["sh", "-c", "kill -SEGV $$"],
    "any bytes, and many": python(FLOOD),
    "no end of line": ["printf", "no newline"],
    "stdin": ["cat"],
    "environment": ["env", "-0"],
    "signals": python("import signal; print([(int(s), signal.getsignal(s)) for s in signal.valid_signals()], signal.pthread_sigmask(0, ()))"),
    "limits, folder, group": python(
        "import os, resource; print(os.getcwd(), resource.getrlimit(resource.RLIMIT_CORE), os.nice(0), os.getpgrp(), os.getsid(0))"
    ),
    "open files": python("import os; print(sorted(os.listdir('/proc/self/fd')))"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_and_ends_as_it_does_without_autotune(name: str, tmp_path: Path) -> None:
    command = COMMANDS[name]
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "SLURM_JOB_ID": "7", "ODD": "a=b\nc"}
    stdin = b"\0one\ntwo" * 1000
    bare = ran(command, stdin, env=environment, cwd=tmp_path, process_group=0)
    found = ran(in_place(command), stdin, env=environment, cwd=tmp_path, process_group=0)
    if name == "limits, folder, group":  # the number of the group is another one with each start
        assert found[0].split()[:4] == bare[0].split()[:4]
        assert found[1:] == bare[1:]
        return
    assert found == bare


@pytest.mark.parametrize("adviser", ADVISERS)
def test_whatever_becomes_of_the_adviser_the_command_is_left_alone(adviser: str) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 5"]
    out, err, code = ran(in_place(command, ADVISERS[adviser]))
    assert (out, theirs(err), code) == (b"out\n", b"err\n", 5)
    said = [line for line in err.splitlines() if line.startswith(b"autotune: ")]
    assert len(said) == {"quiet": 0, "talkative": 2, "broken": 1, "killed": 0}[adviser]


def test_an_adviser_that_hangs_holds_nobody_up_for_long() -> None:
    script = _START.format(adviser="lambda channel: __import__('time').sleep(600)")
    script = script.replace(
        "run_in_place(",
        "import autotune.observing.in_place as p; p.BEFORE_S = p.AFTER_S = 0.2\nrun_in_place(",
    )
    out, err, code = ran([sys.executable, "-c", script, "echo", "out"])
    assert (out, err, code) == (b"out\n", b"autotune: the adviser gave no answer\n", 0)


def test_lines_of_autotune_stand_at_the_beginning_of_lines() -> None:
    late = "lambda channel: (channel.send(b'R'), channel.recv(1 << 17), channel.recv(1 << 17), channel.send(b'Lautotune: late'), until_the_end(channel))"
    command = python(
        "import sys, time; sys.stderr.write('begun '); sys.stderr.flush(); time.sleep(1.0); sys.stderr.write('ended\\n')"
    )
    _, err, _ = ran(in_place(command, late))
    assert err in (b"begun ended\nautotune: late\n", b"autotune: late\nbegun ended\n")


def test_stdout_and_stderr_in_one_pipe_keep_their_order() -> None:
    text = "import os\nfor n in range(3000): os.write(1 + n % 2, b'%d\\n' % n)"
    done = subprocess.run(
        in_place(python(text)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LONG_S,
        check=True,
    )
    assert done.stdout.split() == [b"%d" % n for n in range(3000)]


def test_output_into_a_file_is_the_programs_own_and_still_heard(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    keep = f"lambda channel: (channel.send(b'R'), open({str(heard)!r}, 'wb').write(b''.join(iter(lambda: told(channel.recv(1 << 17)), b''))))"
    script = _START.format(adviser=keep).replace(
        "run_in_place(",
        "told = lambda p: b'' if p[:1] == b'E' else p[9:] if p[:1] in b'1234' else b' '\nrun_in_place(",
        1,
    )
    show = "import os, stat; print(stat.S_ISREG(os.fstat(1).st_mode)); print('lines')"
    with (tmp_path / "log").open("w") as log:
        log.write("what was there\n")
        log.flush()
        subprocess.run(
            [sys.executable, "-c", script, *python(show)],
            stdout=log,
            stderr=log,
            timeout=LONG_S,
            check=True,
        )
    assert (tmp_path / "log").read_text() == "what was there\nTrue\nlines\n"
    assert heard.read_bytes().strip() == b"True\nlines"


def test_a_program_hears_when_nobody_reads_any_more() -> None:
    endless = python("import sys\nwhile True: print('y' * 1000)")
    with subprocess.Popen(
        in_place(endless), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(LONG_S) in (1, 120)  # Python's BrokenPipeError


def test_what_a_command_leaves_behind_prints_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        in_place(["sh", "-c", "(sleep 1; echo later) & echo now"]), stdout=subprocess.PIPE
    ) as process:
        assert process.wait(LONG_S) == 0
        assert process.stdout.read() == b"now\nlater\n"


@pytest.mark.parametrize(("mode", "code"), [(None, 127), (0o644, 126)])
def test_a_program_that_cannot_be_started_has_the_exit_code_of_shells(
    mode: int | None, code: int, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.write_text("text")
        program.chmod(mode)
    out, err, found = ran(in_place([str(program)]))
    assert (out, found) == (b"", code)
    assert err.startswith(b"autotune: ")


COUNTS = """
import signal, sys, time
heard = []
for s in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
    signal.signal(s, lambda n, f: heard.append(signal.Signals(n).name))
print('ready', flush=True)
end = time.monotonic() + 60
while 'SIGUSR2' not in heard and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
print(*heard, flush=True)
"""


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the process", "to its group"])
def test_a_program_hears_each_signal_once(send: Callable[[int, int], None]) -> None:
    with subprocess.Popen(
        in_place(python(COUNTS)), stdout=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
            send(process.pid, number)
            time.sleep(0.5)
        assert process.stdout.read().split() == [b"SIGUSR1", b"SIGUSR1", b"SIGTERM", b"SIGUSR2"]
        assert process.wait(LONG_S) == 0


def test_the_command_dies_with_what_stands_for_it(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo $$ > {tmp_path}/pid; echo ready; exec sleep 600"]
    with subprocess.Popen(in_place(command), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        pid = int((tmp_path / "pid").read_text())
        process.kill()
        assert process.wait(LONG_S) == -9
        assert process.stdout.read() == b""  # ends when the command is gone
        end_s = time.monotonic() + LONG_S
        while (
            Path(f"/proc/{pid}").exists()
            and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        ):
            assert time.monotonic() < end_s
            time.sleep(0.05)


AGAIN_S = 10.0
"""after which a person presses Ctrl-C once more"""


def test_a_terminal_stays_one() -> None:
    show = "import os, sys; print(*map(os.isatty, (0, 1, 2)), *os.get_terminal_size(1)); sys.stdout.flush(); print('you are', input('who? ')); sys.stdout.flush(); __import__('time').sleep(600)"
    pid, terminal = pty.fork()
    if pid == 0:
        size = struct.pack("HHHH", 33, 111, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        command = in_place(python(show))
        os.execv(command[0], command)
    text, told = b"", 0
    for sign, answer in ((b"who? ", b"me\n"), (b"you are me\r\n", b"\x03")):
        while sign not in text:
            text += os.read(terminal, 4096)
        told += os.write(terminal, answer)
    while True:
        if not select.select([terminal], [], [], AGAIN_S)[0]:
            os.write(
                terminal, b"\x03"
            )  # Python may have swallowed the first one: it came within a callback that cannot raise
            continue
        try:
            text += os.read(terminal, 4096)
        except OSError:
            break
    assert text.startswith(b"True True True 111 33\r\nwho? me\r\nyou are me\r\n^C")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGINT


@pytest.mark.parametrize(
    ("environment", "command", "speaks"),
    [
        ({}, ["python", "train.py"], True),
        ({"SLURM_PROCID": "0", "RANK": "0"}, ["python", "train.py"], True),
        ({"SLURM_PROCID": "1"}, ["python", "train.py"], False),
        ({"OMPI_COMM_WORLD_RANK": "12"}, ["python", "train.py"], False),
        ({"PMI_RANK": "3"}, ["python", "train.py"], False),
        ({"RANK": "1", "SLURM_PROCID": "0"}, ["python", "train.py"], False),
        ({}, ["torchrun", "--nnodes=2", "--node-rank=1", "train.py"], False),
        ({}, ["torchrun", "--nnodes", "2", "--node_rank", "0", "train.py"], True),
        ({}, ["accelerate", "launch", "--machine_rank", "1", "train.py"], False),
    ],
)
def test_the_first_process_of_a_job_speaks(
    environment: dict[str, str], command: list[str], speaks: bool
) -> None:
    assert is_first(environment, command) is speaks


def test_other_processes_of_a_job_become_the_command() -> None:
    environment = {**os.environ, "SLURM_PROCID": "1"}
    command = ["sh", "-c", "echo $PPID; exit 4"]
    out, err, code = ran(
        [sys.executable, "-c", "from autotune.cli import main; main()", "run", "--", *command],
        env=environment,
    )
    assert (int(out), err, code) == (os.getpid(), b"", 4)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ()),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": ""}, ()),
        ({"RANK": "3"}, ("RANK=3 without", "neither reviewed nor stored", "`unset RANK`")),
        (
            {"RANK": "3", "WORLD_SIZE": "8"},
            ("RANK=3, WORLD_SIZE=8", "neither reviewed", "`unset RANK WORLD_SIZE`"),
        ),
        ({"WORLD_SIZE": "8"}, ("WORLD_SIZE=8", "may wait for other ranks")),
        ({"LOCAL_RANK": "2"}, ("LOCAL_RANK=2", "may wait for other ranks")),
        ({"RANK": "3", "TORCHELASTIC_RUN_ID": "none"}, ()),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "3"}, ()),
        ({"RANK": "3", "WORLD_SIZE": "8", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ()),
    ],
)
def test_ranks_that_no_launcher_set_are_told(
    environment: dict[str, str], words: tuple[str, ...]
) -> None:
    said = leftover(environment, ["python", "train.py"])
    assert bool(said) == bool(words)
    assert all(word in said for word in words)


def test_a_command_that_is_not_kept_because_of_a_leftover_rank_says_why_and_runs() -> None:
    kept = {name: text for name, text in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
    out, err, code = ran(
        [sys.executable, "-m", "autotune", "run", "--", "sh", "-c", "echo $RANK; exit 4"],
        env={**kept, "RANK": "3"},
    )
    assert (out, code) == (b"3\n", 4)
    assert err.startswith(b"autotune: found RANK=3 without a launcher")
    assert err.count(b"\n") == 1
