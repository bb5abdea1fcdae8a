"""The keeper of a program: its lease, its bounded log, its end; the readings that it takes on its
node."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.temporary_folders import LOCK
from autotune.trainers.launch_files import FOLDER
from autotune_workers.gang.wire import Lines, Message
from autotune_workers.probe.injected.written_files import COPY_BYTES
from autotune_workers.probe.probe_folder import ProbeFolder, put_back_abandoned
from autotune_workers.process import machine
from autotune_workers.process.keeper import log as keeper_log
from autotune_workers.process.keeper.log import LeftOut, LogReader, Outbox, StepTest
from autotune_workers.process.keeper.owner import KeeperProcess
from autotune_workers.process.machine import GpuMemory, descendants, interface_of, is_alive
from autotune_workers.process.program.places import ProgramOrder
from tests.workers.processes import parent_of, until

pytestmark = pytest.mark.alone

SLEEPS = "import time; print('here', flush=True); time.sleep(3600)"


@pytest.fixture
def keeper() -> Iterator[KeeperProcess]:
    keeper = KeeperProcess(detached=False)
    yield keeper
    keeper.close(30.0)


def heard_to(
    keeper: KeeperProcess,
    event: str,
    timeout_s: float = 30.0,
    every: Callable[[], None] = lambda: None,
) -> list[Message]:
    """Messages up to the first one of this event."""
    heard: list[Message] = []
    end_s = time.monotonic() + timeout_s
    while not any(message["event"] == event for message in heard):
        assert time.monotonic() < end_s, heard
        every()
        heard += keeper.receive()
        time.sleep(0.02)
    return heard


def begin(
    keeper: KeeperProcess, code: str, *arguments: str, lease_s: float | None = None, **order: Any
) -> None:
    keeper.begin(
        ProgramOrder(argv=(sys.executable, "-c", code, *arguments), **order),
        address="127.0.0.1",
        lease_s=lease_s,
    )


def pid_in(messages: list[Message]) -> int:
    return next(int(message["pid"]) for message in messages if message["event"] == "started")


def lines_in(messages: list[Message]) -> list[str]:
    return [line for message in messages for _, line in message.get("lines", ())]


def stamps_in(messages: list[Message]) -> list[float]:
    return [at_s for message in messages for at_s, _ in message.get("lines", ())]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what passes of a log."""

    def set_limits(**values: float) -> None:
        for name, value in values.items():
            monkeypatch.setattr(keeper_log, name.upper(), value)

    return set_limits


def test_a_lease_that_nobody_renews_ends_the_program(keeper: KeeperProcess) -> None:
    begin(keeper, SLEEPS, lease_s=3.0)
    pid = pid_in(heard_to(keeper, "lines", every=keeper.renew))
    end_s = time.monotonic() + 4.0
    while time.monotonic() < end_s:
        keeper.renew()
        assert is_alive(pid), "a renewed lease lasts"
        time.sleep(0.2)
    ended = heard_to(keeper, "ended")[-1]
    assert (ended["code"], ended["left"]) == (-signal.SIGTERM, [])
    assert not is_alive(pid)


@pytest.mark.thorough
def test_the_time_for_which_a_machine_stands_still_is_not_counted(keeper: KeeperProcess) -> None:
    begin(keeper, SLEEPS, lease_s=3.0)
    pid = pid_in(heard_to(keeper, "lines", every=keeper.renew))
    parent = parent_of(pid)
    keeper.renew()
    os.kill(parent, signal.SIGSTOP)
    time.sleep(4.0)
    os.kill(parent, signal.SIGCONT)
    time.sleep(0.5)
    assert is_alive(pid)
    heard_to(keeper, "ended")


def test_a_keeper_is_a_child_that_is_reaped_unless_it_is_detached() -> None:
    """In a container process 1 may reap nobody, so a keeper that need not be detached leaves no
    zombie."""
    for detached in (False, True):
        keeper = KeeperProcess(detached=detached)
        begin(keeper, SLEEPS)
        pid = parent_of(pid_in(heard_to(keeper, "lines")))
        assert (pid in descendants(os.getpid())) is not detached
        keeper.close(30.0)
        assert detached or not Path(f"/proc/{pid}").exists()


def test_what_a_keeper_wrote_is_gone_with_the_program(keeper: KeeperProcess) -> None:
    code = "import os, sys; print(open(sys.argv[1]).read(), os.getcwd())"
    begin(keeper, code, f"{FOLDER}/sub/a.txt", files={"sub/a.txt": "text"})
    heard = heard_to(keeper, "ended")
    (line,) = lines_in(heard)
    text, folder = line.split()
    assert text == "text"
    assert not Path(folder).exists()
    assert heard[-1]["code"] == 0
    assert heard[-1]["peak_bytes"] >= 0


CUTS = """
import subprocess, sys, time
open("mine.txt", "w").write("the trial's")
code = "import time; open('also.txt', 'w').write('its child'); print('here', flush=True); time.sleep(3600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
time.sleep(3600)
"""
"""writes over two files, the second one in a session of its own, as ranks of torchrun do"""


def test_files_are_put_back_though_the_keeper_is_killed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("weeks of work")
    (tmp_path / "also.txt").write_text("more of it")
    keeper = KeeperProcess(detached=False)
    begin(keeper, CUTS, cwd=str(tmp_path))
    heard = heard_to(keeper, "lines")
    assert (tmp_path / "also.txt").read_text() == "its child"
    os.kill(parent_of(pid_in(heard)), signal.SIGKILL)
    heard_to(keeper, "gone")
    as_before = {"mine.txt": "weeks of work", "also.txt": "more of it"}
    # another autotune of this user may be the one that puts them back
    until(lambda: {p.name: p.read_text() for p in tmp_path.iterdir()} == as_before, 60.0)
    keeper.close(1.0)


def test_files_of_an_attempt_of_which_everything_was_killed_are_put_back_by_the_next_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.txt").write_text("weeks of work")
    probe = ProbeFolder()
    variables = probe.variables(
        dict(os.environ), trial_folder=str(tmp_path / "trial"), keeps_files=True
    )
    code = "open('mine.txt', 'w').write('the trial')"
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **variables}, check=True
    )
    assert put_back_abandoned() == []
    assert (tmp_path / "mine.txt").read_text() == "the trial", "its keeper lives"
    lock = probe._folder._lock
    assert lock is not None
    os.close(lock)  # as the kernel does when the keeper is killed
    keeper = KeeperProcess(detached=False)
    begin(keeper, "pass", cwd=str(tmp_path))
    heard_to(keeper, "ended")
    keeper.close(30.0)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"mine.txt": "weeks of work"}
    assert not probe.path.exists()


def test_folders_of_an_attempt_whose_keeper_was_killed_are_removed_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    keeper = KeeperProcess(detached=False)
    code = (
        "import os, time\n"
        "open(os.path.join(os.environ['AUTOTUNE_TRIAL_DIR'], 'checkpoint'), 'w').close()\n"
        "print('here', flush=True)\n"
        "time.sleep(3600)"
    )
    begin(keeper, code, cwd=str(tmp_path))
    heard_to(keeper, "lines")
    folders = set(tmp_path.glob("autotune-*"))
    assert {path.name.rpartition("-")[0] for path in folders} == {
        "autotune-launch",
        "autotune-probe",
    }
    for folder in folders:
        os.utime(folder / LOCK, (0, 0))
    assert put_back_abandoned() == []
    assert set(tmp_path.glob("autotune-*")) == folders, "their keeper lives"
    os.kill(keeper._pid, signal.SIGKILL)
    until(lambda: keeper.receive() and not keeper._channel.is_open, 60.0)
    keeper.close(1.0)
    put_back_abandoned()
    assert not list(tmp_path.glob("autotune-*"))


def test_a_young_folder_is_left_alone_because_its_keeper_may_be_about_to_lock_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("autotune-launch-young", "autotune-launch-without-lock"):
        (tmp_path / name).mkdir()
    (tmp_path / "autotune-launch-young" / LOCK).write_text(os.uname().nodename)
    put_back_abandoned()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_too_long_to_be_kept_is_not_changed(
    keeper: KeeperProcess, tmp_path: Path
) -> None:
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(COPY_BYTES + 1)
    code = "f = open('big.bin', 'r+b'); f.write(b'X'); f.close(); print('written', flush=True)"
    begin(keeper, code, cwd=str(tmp_path))
    heard: list[Message] = []
    while not any(
        r["kind"] == "unkept" for m in heard if m["event"] == "probe" for r in m["reports"]
    ):
        heard += heard_to(keeper, "probe")
    keeper.end()
    heard += heard_to(keeper, "ended")
    assert not any(message["event"] == "lines" for message in heard)
    with (tmp_path / "big.bin").open("rb") as file:
        assert file.read(1) == b"\0"


@pytest.mark.parametrize(
    ("argv", "cwd", "says"),
    [(("/no/python",), "", "trainer.python"), ((sys.executable,), "/no/folder", "trainer.cwd")],
)
def test_what_is_not_on_the_node_is_refused_with_what_to_do(
    keeper: KeeperProcess, argv: tuple[str, ...], cwd: str, says: str
) -> None:
    keeper.begin(ProgramOrder(argv=argv, cwd=cwd), address="127.0.0.1")
    reason = heard_to(keeper, "refused")[-1]["reason"]
    assert says in reason
    assert socket.gethostname() in reason


def test_of_files_that_cannot_be_written_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    keeper = KeeperProcess(detached=False)
    try:
        begin(keeper, SLEEPS, files={"a": "text", "a/b": "a file in a file"})
        assert "Error" in heard_to(keeper, "refused")[-1]["reason"]
    finally:
        keeper.close(30.0)
    assert list(tmp_path.iterdir()) == []


def test_files_are_utf8_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    keeper = KeeperProcess(detached=False)
    try:
        begin(
            keeper,
            "import sys; print(open(sys.argv[1], 'rb').read())",
            f"{FOLDER}/a",
            files={"a": "größer"},
        )
        heard = heard_to(keeper, "ended")
    finally:
        keeper.close(30.0)
    (line,) = lines_in(heard)
    assert line == repr("größer".encode())


def test_a_keeper_that_is_killed_takes_the_program_with_it(keeper: KeeperProcess) -> None:
    begin(keeper, SLEEPS)
    pid = pid_in(heard_to(keeper, "lines"))
    os.kill(parent_of(pid), signal.SIGKILL)
    assert heard_to(keeper, "gone")[-1] == {
        "event": "gone",
        "why": "the process that watches the program was lost",
    }
    until(lambda: not is_alive(pid), 10.0)


TRACEBACK = b"Traceback (most recent call last):\n  File 'train.py', line 7, in <module>\nValueError: the last words\n"


@pytest.mark.thorough
@pytest.mark.parametrize("lines", [10_000, 300_000])
def test_the_last_words_reach_an_owner_that_is_far_behind(lines: int) -> None:
    first = {
        "event": "lines",
        "lines": [[0.0, "x" * (keeper_log.BACKLOG_BYTES + MORE_THAN_A_SOCKET_HOLDS)]],
    }
    arrived = lines_in(heard_late(b"a line of the program\n" * lines + TRACEBACK, first))
    assert arrived[-3:] == TRACEBACK.decode().splitlines()


def test_a_traceback_that_begins_while_lines_are_left_out_arrives_whole(
    limit: Callable[..., None],
) -> None:
    limit(burst_bytes=1000, rate_bytes_per_s=10_000)
    messages = sent(
        b"a line of the program\n" * 10_000 + TRACEBACK[:40], TRACEBACK[40:], pause_s=0.02
    )
    assert left_out_of(messages).lines > 0
    assert lines_in(messages)[-3:] == TRACEBACK.decode().splitlines()


def test_lines_that_wait_pass_as_soon_as_the_rate_allows_with_the_time_of_their_arrival(
    limit: Callable[..., None],
) -> None:
    limit(burst_bytes=1000, rate_bytes_per_s=4000, retry_s=0.01)
    messages = sent(b"line\n" * 300, pause_s=0.3)  # in one piece
    assert len(messages) > 1
    assert "left_out" not in messages[0]
    stamps = stamps_in(messages)
    assert len(stamps) == 300
    assert len(set(stamps)) == 1


def steps_are() -> StepTest:
    return StepTest(lambda line: line.startswith("step "))


def marked_steps_are() -> StepTest:
    return StepTest.of(lambda line: line.startswith("step "), ("step",))


def left_out_of(messages: list[Message]) -> LeftOut:
    return sum(map(LeftOut.of, messages), LeftOut())


def sent(
    *pieces: bytes, pause_s: float = 0.0, test: Callable[[], StepTest] = steps_are
) -> list[Message]:
    """What a log reader sends of a log that is written piece by piece, with a pause after each."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    heard, lines = [], Lines()
    with ours, theirs:
        outbox = Outbox(theirs)
        reader = LogReader(reading, outbox, test)
        reader.start()
        with os.fdopen(writing, "wb", buffering=0) as log:
            for piece in pieces:
                log.write(piece)
                time.sleep(pause_s)
        while reader.is_alive() or outbox.is_full:
            outbox.flush()
            reader.join(0.01)
            with contextlib.suppress(BlockingIOError):
                heard += lines.feed(ours.recv(1 << 16, socket.MSG_DONTWAIT))
        theirs.shutdown(socket.SHUT_WR)
        while chunk := ours.recv(1 << 16):
            heard += lines.feed(chunk)
    return heard


MORE_THAN_A_SOCKET_HOLDS = 4_000_000


def heard_late(log: bytes, *first: Message) -> list[Message]:
    """What an owner gets that reads only when the program has ended, and was sent `first` before it
    wrote its log."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    heard, lines = [], Lines()
    with ours, theirs:
        outbox = Outbox(theirs)
        for message in first:
            outbox.send(message)
        reader = LogReader(reading, outbox, steps_are)
        reader.start()
        with os.fdopen(writing, "wb") as file:
            file.write(log)
        reader.join(300.0)
        assert not reader.is_alive()
        outbox.send({"event": "ended"})
        while not any(message["event"] == "ended" for message in heard):
            heard += lines.feed(ours.recv(1 << 16))
            outbox.flush()
    return heard


def test_lines_end_by_carriage_returns_and_the_last_one_needs_no_end() -> None:
    messages = sent(b"1/3\r2/", b"3\r3/", b"3\r", b"\nend")
    assert lines_in(messages) == ["1/3", "2/3", "3/3", "end"]
    stamps = stamps_in(messages)
    assert stamps == sorted(stamps)
    assert time.monotonic() - 30 < stamps[0] <= time.monotonic()


def test_more_than_can_be_passed_on_is_left_out_and_counted_and_the_last_lines_are_kept(
    limit: Callable[..., None],
) -> None:
    limit(burst_bytes=1000, rate_bytes_per_s=0, last_bytes=200)
    log = b"".join(b"line %03d\n" % number for number in range(500))
    messages = sent(*(log[start : start + 500] for start in range(0, len(log), 500)))
    lines = lines_in(messages)
    left_out = left_out_of(messages).lines
    assert lines[0] == "line 000"
    assert lines[-1] == "line 499"
    assert len(lines) + left_out == 500
    assert len("".join(lines)) < 1400


def test_an_owner_that_does_not_read_holds_nobody_up(limit: Callable[..., None]) -> None:
    limit(backlog_bytes=1000)
    heard = heard_late(b"a line of the program\n" * 200_000)
    passed, left_out = len(lines_in(heard)), left_out_of(heard).lines
    assert passed + left_out == 200_000
    assert passed < left_out


def flood(steps: int, junk: bytes, times: int) -> bytes:
    """A log in which each step line ends a burst of others."""
    return b"".join(junk * times + b"step %d\n" % number for number in range(steps))


@pytest.mark.thorough
@pytest.mark.parametrize("test", [steps_are, marked_steps_are])
@pytest.mark.parametrize(
    "junk", [b"a line of the program\n", b"x" * 200_000 + b"\n"], ids=["short", "long"]
)
def test_of_the_lines_that_cannot_pass_the_step_lines_do(
    limit: Callable[..., None], junk: bytes, test: Callable[[], StepTest]
) -> None:
    limit(burst_bytes=1000, rate_bytes_per_s=0, last_bytes=200)
    messages = sent(flood(300, junk, 1_000_000 // 300 // len(junk) + 1), test=test)
    lines = lines_in(messages)
    assert [line for line in lines if line.startswith("step ")] == [
        f"step {number}" for number in range(300)
    ]
    left_out = left_out_of(messages)
    assert left_out.lines > 250
    assert left_out.step_lines == 0
    assert left_out.bytes > 200 * left_out.lines // 10
    stamps = stamps_in(messages)
    assert stamps == sorted(stamps)


def test_of_a_flood_only_lines_with_a_mark_are_looked_at(limit: Callable[..., None]) -> None:
    """The program waits for whoever reads its log: a look at each line would slow the steps that
    are measured."""
    limit(burst_bytes=1000, rate_bytes_per_s=0)
    looked: list[str] = []

    def may_tell(line: str) -> bool:
        looked.append(line)
        return line.startswith("step ")

    log = flood(300, b"a line of the program\r\n", 1000).replace(
        b"step 7\n", b"step 7\rno step\n\n"
    )
    messages = sent(log, test=lambda: StepTest.of(may_tell, ("step",)))
    lines = lines_in(messages)
    assert [line for line in lines if line.startswith("step ")] == [
        f"step {number}" for number in range(300)
    ]
    assert set(looked) <= {"no step", *(f"step {number}" for number in range(300))}
    assert len(lines) + left_out_of(messages).lines >= 300_000


@pytest.mark.thorough
def test_a_keeper_knows_the_step_lines_of_its_trainer(keeper: KeeperProcess) -> None:
    code = """
for step in range(200):
    print("DEBUG ncclAllReduce opCount 1f4 sendbuff 0x7f00 recvbuff 0x7f00 count 4096\\n" * 800, end="")
    print(f"{{'loss': 2.5, 'learning_rate': {step}}}")
"""
    begin(keeper, code, trainer="command")
    lines = lines_in(heard_to(keeper, "ended", 120.0))
    assert [line for line in lines if "loss" in line] == [
        f"{{'loss': 2.5, 'learning_rate': {n}}}" for n in range(200)
    ]
    assert len(lines) < 200 * 700


def test_step_lines_that_a_busy_owner_cannot_take_are_bounded_and_counted(
    limit: Callable[..., None],
) -> None:
    limit(backlog_bytes=0, step_bytes=1000, burst_bytes=0)
    heard = heard_late(
        flood(20_000, b"", 0), {"event": "started", "why": "x" * MORE_THAN_A_SOCKET_HOLDS}
    )
    left_out = left_out_of(heard)
    assert left_out.step_lines == left_out.lines > 0
    assert len(lines_in(heard)) + left_out.lines == 20_000
    assert "step lines among them" in left_out.text


def test_without_the_trainer_nothing_is_taken_for_a_step_and_that_is_said(
    limit: Callable[..., None],
) -> None:
    def missing() -> StepTest:
        raise LookupError("there is no trainer 'ours'")

    limit(burst_bytes=0, last_bytes=200)
    messages = sent(flood(300, b"a line of the program\n", 100), test=missing)
    left_out = left_out_of(messages)
    assert left_out.lines > 20_000
    assert left_out.text.endswith(
        "perhaps with step lines among them (LookupError: there is no trainer 'ours')"
    )


def test_output_without_lines_is_told_at_least_every_second(limit: Callable[..., None]) -> None:
    limit(life_s=0.05)
    messages = sent(*[b"."] * 5, b"\n", pause_s=0.1)
    assert [message["lines"] for message in messages[:-1]].count([]) >= 3
    assert messages[-1]["lines"][-1][1] == "....."


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") == ""


@dataclass
class FakeNvml:
    """Two GPUs as pynvml shows them."""

    used: list[int]
    processes: list[dict[int, int | None]]

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=self.used[gpu])

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:  # noqa: N802
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=size)
            for pid, size in self.processes[gpu].items()
        ]


def test_gpu_memory_is_that_of_the_programs_processes_on_the_fullest_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "SAMPLE_S", 0.0)
    nvml = FakeNvml(used=[100, 0], processes=[{}, {}])
    memory = GpuMemory(nvml)
    memory.begin("0,1")
    assert memory.peak_bytes is None
    nvml.processes = [{7: 10, 99: 500}, {7: 20, 8: 15}]
    memory.look([7, 8])
    nvml.processes = [{7: 12}, {}]
    memory.look([7, 8])
    assert memory.peak_bytes == 35


def test_where_the_driver_names_no_process_what_was_added_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "SAMPLE_S", 0.0)
    nvml = FakeNvml(used=[100, 400], processes=[{}, {4_000_000: None}])
    memory = GpuMemory(nvml)
    memory.begin(None)
    nvml.used = [150, 700]
    memory.look([7])
    nvml.used = [150, 500]
    memory.look([7])
    assert memory.peak_bytes == 300


def test_a_program_without_gpus_has_no_reading() -> None:
    memory = GpuMemory(FakeNvml(used=[1], processes=[{}]))
    memory.begin("")
    memory.look([7])
    assert memory.peak_bytes is None


RECORDS = """
import os, pickle, time
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe"
os.mkfifo(pipe)
reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
os.set_blocking(reader, True)  # with a writer that has not written yet, a read would fail at once
print("here", flush=True)
while not os.read(reader, 9):
    time.sleep(0.01)
entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 8, "profiling_name": "nccl:all_reduce"}
open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "0", "wb").write(pickle.dumps({"entries": [entry]}))
time.sleep(3600)
"""


def test_a_hung_program_is_asked_for_its_collectives_before_it_ends(keeper: KeeperProcess) -> None:
    begin(keeper, RECORDS)
    heard_to(keeper, "lines")
    keeper.end(hung=True)
    assert heard_to(keeper, "ended", 15.0)[-1]["collectives"] == {
        "0": {"0": [8, "nccl:all_reduce"]}
    }
