"""What becomes of the user's files while a program runs under the probe: the program runs as
without it, and afterwards everything is as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autotune_workers.probe import probe_folder
from autotune_workers.probe.probe_folder import ProbeFolder
from tests.workers.probe.watching import Watched, watched

LIMIT_S = 60.0
IMPORTS = "import os, shutil, subprocess, sys\nfrom pathlib import Path\n"
FEW = "import autotune_probe.written_files as w; w.MOST_FILES = 4\n"
"""as if so many were the most files that are reported"""
STOPS = "import autotune_probe.written_files as w; w.time.sleep = lambda s: os._exit(9)\n"
"""a process that waits to be ended ends itself"""

PROGRAMS = {
    "a folder is emptied and removed": (
        "for top, folders, names in os.walk('out', topdown=False):\n"
        "    for name in (*folders, *names):\n"
        "        path = Path(top, name)\n"
        "        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()\n"
        "os.rmdir('out'); print(os.path.exists('out'))"
    ),
    "a link is removed and made anew": "os.remove('latest'); os.symlink('in-place.bin', 'latest'); print(os.readlink('latest'))",
    "a link is replaced": "os.symlink('in-place.bin', 'next'); os.replace('next', 'latest'); print(os.readlink('latest'))",
    "a link is written through": "open('latest', 'w').write('x'); print(os.path.islink('latest'))",
    "a file is renamed and gets its name again": "os.rename('a.txt', 'b.txt'); os.rename('b.txt', 'a.txt'); print(open('a.txt').read())",
    "a renamed file is cut": "os.rename('a.txt', 'new.txt'); open('new.txt', 'w').write('x'); print(open('new.txt').read())",
    "a renamed file is written in place": (
        "os.rename('a.txt', 'new.txt')\nwith open('new.txt', 'r+') as f: f.write('X')\nprint(open('new.txt').read())"
    ),
    "a file gets its name again and is written": (
        "os.rename('a.txt', 'b.txt'); os.rename('b.txt', 'a.txt')\n"
        "with open('a.txt', 'a') as f: f.write('X')\nprint(open('a.txt').read())"
    ),
    "another process writes the renamed file": (
        "os.rename('a.txt', 'new.txt')\n"
        'subprocess.run([sys.executable, \'-c\', \'open("new.txt", "a").write("X")\'], check=True)\n'
        "print(open('new.txt').read())"
    ),
    "a folder is renamed and gets its name again": "os.rename('out', 'x'); os.rename('x', 'out'); print(len(os.listdir('out')))",
    "a folder is renamed, its files are written and a new one has its name": (
        "os.rename('out', 'old'); os.mkdir('out'); open('out/mine', 'w').close()\n"
        "open('old/a--b', 'w').write('x'); print(os.path.exists('old/a--b'))\n"
        "shutil.rmtree('old')"
    ),
    "a folder of many files is renamed": FEW + "os.rename('out', 'x'); print(len(os.listdir('x')))",
    "a folder is moved to another disk": (
        "import tempfile; there = tempfile.mkdtemp(dir='/dev/shm'); shutil.move('out', there)\n"
        "print(os.listdir(there)); shutil.rmtree(there)"
    ),
    "a folder is removed because it cannot be renamed": (
        "try: os.rename('out', 'data')\nexcept OSError: shutil.rmtree('out')\nprint(len(os.listdir('data')))"
    ),
    "a folder is renamed twice and then removed": (
        "os.mkdir('other'); os.rename('out', 'x'); os.rename('x', 'y'); os.mkdir('out'); shutil.rmtree('y'); print(os.listdir('out'))"
    ),
    "renaming a folder fails": (
        "try: os.rename('out', 'data')\nexcept OSError as e: print(type(e))"
    ),
    "renaming a file fails": "try: os.rename('a.txt', 'out')\nexcept OSError as e: print(type(e))",
    "removing fails": "try: os.remove('out')\nexcept OSError as e: print(type(e))",
    "a folder is removed with all that is in it": "shutil.rmtree('out'); print(os.path.exists('out'))",
    "a folder is removed and made anew": (
        "shutil.rmtree('out'); os.mkdir('out'); open('out/a--b', 'w').write('x'); print(os.listdir('out'))"
    ),
    "a folder is removed in which files were written": (
        "open('out/a--b', 'w').write('x')\nwith open('out/a/b', 'a') as f: f.write('x')\n"
        "shutil.rmtree('out'); print(os.path.exists('out'))"
    ),
    "all files of a folder are removed, the ones that are kept as well": (
        "os.remove('data/0.npy')\n"
        "for name in os.listdir('data'): os.remove('data/' + name)\n"
        "print(os.path.exists('data/1.npy'))"
    ),
    "more files are written than are reported": FEW
    + (
        "for n in range(9): open(f'data/{n}.npy', 'w' if n % 2 else 'r+').write('x')\n"
        "print(open('data/7.npy').read())"
    ),
    "many new files are written before an old one": FEW
    + "for n in range(9): open(f'new-{n}', 'w').close()\nopen('a.txt', 'w').close(); print(Path('a.txt').stat().st_size)",
    "a file with two names is written by both": (
        "with open('hard-1', 'a') as f: f.write('X')\nopen('hard-2', 'w').write('y'); print(open('hard-2').read())"
    ),
    "a file with two names is cut by both": (
        "open('hard-1', 'w').write('x'); open('hard-2', 'w').write('y'); print(open('hard-2').read())"
    ),
    "a file with two names loses both": "os.remove('hard-1'); os.remove('hard-2'); print(os.path.exists('hard-2'))",
    "a file that is there is opened to be made": "try: open('a.txt', 'x')\nexcept FileExistsError: print('there')",
    "a file is cut that must be there": (
        "f = os.open(os.path.abspath('a.txt'), os.O_WRONLY | os.O_TRUNC); os.write(f, b'x'); print(oct(os.fstat(f).st_mode))"
    ),
    "a file of another folder is cut": (
        "d = os.open('out', os.O_RDONLY); f = os.open('a.txt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=d)\n"
        "print(open('a.txt').read())"
    ),
    "a file is cut and still has its mode": "open('in-place.bin', 'w').write('x'); print(oct(os.stat('in-place.bin').st_mode))",
    "several processes append": (
        'code = \'with open("log.txt", "a") as f: f.write("x\\\\n")\'\n'
        "all = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(4)]\n"
        "print([each.wait() for each in all], os.path.getsize('log.txt'))"
    ),
    "it removes its own folder": "os.chdir('out'); shutil.rmtree(os.getcwd()); print(os.path.exists('a--b'))",
    "names are long": "shutil.rmtree('long'); print(os.path.exists('long'))",
    "a mapped file is written": (
        "import mmap\nwith open('in-place.bin', 'r+b') as f:\n    m = mmap.mmap(f.fileno(), 0); m[0:1] = b'Z'; m.flush()\n"
        "print(open('in-place.bin', 'rb').read(1))"
    ),
}


def made(folder: Path) -> Path:
    """A home as programs find it."""
    for name in ("out/deep/er", "out/empty", "out/a", "data", "long/" + "x" * 200):
        (folder / name).mkdir(parents=True)
    for name in ("out/a--b", "out/a/b", "out/deep/er/c.bin", "a.txt", "in-place.bin", "hard-1"):
        (folder / name).write_text(f"weeks of work: {name}")
    for n in range(9):
        (folder / f"data/{n}.npy").write_text(f"shard {n}")
    (folder / "log.txt").write_bytes(b"line\n" * 4_000_000)
    (folder / "long" / ("x" * 200) / ("y" * 200)).write_text("long")
    os.link(folder / "hard-1", folder / "hard-2")
    os.symlink("a.txt", folder / "latest")
    os.symlink("deep", folder / "out/link")
    (folder / "in-place.bin").chmod(0o640)
    (folder / "out/deep").chmod(0o711)
    for path in folder.rglob("*"):
        os.utime(path, ns=(10**18, 10**18 + 123_456_789), follow_symlinks=False)
    return folder


def state(folder: Path) -> dict[str, Any]:
    """All that a user could miss, by path."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        at = path.lstat()
        if path.is_symlink():
            what: Any = os.readlink(path)
        elif path.is_dir():
            what = None
        else:
            what = path.read_bytes(), at.st_mtime_ns, at.st_nlink
        found[str(path.relative_to(folder))] = (what, at.st_mode, at.st_uid)
    return found


def run(folder: Path, code: str) -> Watched:
    return watched([sys.executable, "-c", IMPORTS + code], cwd=folder)


def text_of(code: str, cwd: Path) -> str:
    command = [sys.executable, "-c", IMPORTS + code.replace(FEW, "")]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_without_the_probe_and_leaves_what_was_there(
    tmp_path: Path, name: str
) -> None:
    home, other = made(tmp_path / "home"), made(tmp_path / "other")
    before = state(home)
    hard = (home / "hard-1").stat().st_ino
    seen = run(home, PROGRAMS[name])
    assert (seen.code, seen.lost, seen.text) == (0, [], text_of(PROGRAMS[name], other))
    after = state(home)
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after if "before-autotune" in path]
    assert {(home / f"hard-{n}").stat().st_ino for n in (1, 2)} == {hard}


UNKEPT = {
    "a backup that another trial left": (
        "Path('.a.txt.before-autotune').touch()",
        "open('a.txt', 'w').write('x')",
        "is another trial's backup",
    ),
    "a backup beside a file that the other trial made": (
        "os.rename('a.txt', '.a.txt.before-autotune')",
        "open('a.txt', 'w').write('x')",
        "is another trial's backup",
    ),
    "no room for a copy": (
        "",
        "w.SMALL_BYTES, w.FREE_BYTES = 0, 1 << 62\nwith open('a.txt', 'a') as f: f.write('x')",
        "less than 1 GiB free",
    ),
    "a file that is too long": (
        "",
        "w.COPY_BYTES = 3\nwith open('a.txt', 'r+') as f: f.write('x')",
        "larger than",
    ),
    "no journal": (
        "",
        "Path(os.environ['AUTOTUNE_PROBE_REPORTS'], 'kept').touch()\nopen('a.txt', 'w').write('x')",
        "File exists",
    ),
}


@pytest.mark.parametrize("name", UNKEPT)
def test_a_file_that_cannot_be_kept_is_never_touched(tmp_path: Path, name: str) -> None:
    home = made(tmp_path / "home")
    prepare, code, why = UNKEPT[name]
    text_of(prepare, home)
    before = state(home)
    seen = run(home, STOPS + code)
    assert seen.code == 9, seen.text
    [report] = seen.of("unkept")
    assert (report["files"], why in report["why"]) == ([str(home / "a.txt")], True), report
    assert state(home) | {".trial": 0} == before | {".trial": 0}


def test_a_process_that_nobody_ends_ends_before_it_changes_the_file(tmp_path: Path) -> None:
    home = made(tmp_path / "home")
    code = "import autotune_probe.written_files as w; w.COPY_BYTES, w.HELD_S = 3, 0.1\n"
    seen = run(home, code + "with open('a.txt', 'r+') as f: f.write('x')")
    assert seen.code == -9
    assert "ended before it changed" in seen.text
    assert (home / "a.txt").read_text() == "weeks of work: a.txt"


def test_a_second_trial_at_the_same_time_does_not_touch_what_the_first_keeps(
    tmp_path: Path,
) -> None:
    home = made(tmp_path / "home")
    before = (home / "a.txt").read_text()
    probes = [ProbeFolder(), ProbeFolder()]
    try:
        processes = []
        for number, probe in enumerate(probes):
            env = {
                **os.environ,
                **probe.variables(dict(os.environ), trial_folder="", keeps_files=True),
            }
            waits = f"open('begun-{number}', 'w').close()\nimport time\nwhile not os.path.exists('go-{number}'): time.sleep(0.01)\n"
            command = [
                sys.executable,
                "-c",
                IMPORTS + waits + STOPS + f"open('a.txt', 'w').write('trial {number}')",
            ]
            processes.append(subprocess.Popen(command, cwd=home, env=env))
        end_s = time.monotonic() + LIMIT_S
        while len(list(home.glob("begun-*"))) < 2 and time.monotonic() < end_s:
            time.sleep(0.01)
        codes = []
        for number, process in enumerate(processes):
            (home / f"go-{number}").touch()
            codes.append(process.wait(LIMIT_S))
        assert codes == [0, 9]
        assert (home / "a.txt").read_text() == "trial 0"
        assert [probe.put_back() for probe in probes] == [[], []]
        assert (home / "a.txt").read_text() == before
        assert not list(home.glob(".*before-autotune"))
    finally:
        for probe in probes:
            probe.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("how", ["a", "w", "r+"])
def test_files_of_others_stay_theirs(tmp_path: Path, how: str) -> None:
    home = made(tmp_path / "home")
    os.chown(home / "a.txt", 12345, 12346)
    seen = run(home, f"open('a.txt', '{how}').write('x'); print(os.stat('a.txt').st_uid)")
    assert seen.text == "12345\n"
    found = (home / "a.txt").stat()
    assert (found.st_uid, found.st_gid) == (12345, 12346)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_file_that_may_not_be_written_cannot_be_written_under_the_probe_either(
    tmp_path: Path,
) -> None:
    home = made(tmp_path / "home")
    shutil.chown(home, 65534, 65534)
    (home / "a.txt").chmod(0o444)
    before = state(home)
    tmp_path.chmod(0o755)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o055)
    code = "os.setuid(65534)\ntry: open('a.txt', 'w')\nexcept PermissionError: print('denied')"
    seen = run(home, code)
    assert (seen.code, seen.text) == (0, "denied\n")
    assert {path: state(home).get(path) for path in before} == before


def test_a_line_of_the_journal_that_a_full_disk_cut_off_does_not_hold_up_the_others(
    tmp_path: Path,
) -> None:
    home = made(tmp_path / "home")
    before = state(home)
    code = (
        "open('a.txt', 'w').write('x')\n"
        "journal = next(Path(os.environ['AUTOTUNE_PROBE_REPORTS'], 'kept').glob('*.jsonl'))\n"
        "with open(journal, 'a') as f: f.write('\\n[12.5, \"link\", \"/a')\n"
        "open('in-place.bin', 'w').write('x')"
    )
    seen = run(home, code)
    assert (seen.code, seen.lost) == (0, []), seen.text
    assert {path: state(home).get(path) for path in before} == before


BY_ANOTHER = "time.sleep(0.5); subprocess.run(['sh', '-c', {!r}], check=True)"
"""what the probe does not hear, as an editor of the user's"""


@pytest.mark.parametrize(
    ("code", "edit", "path"),
    [
        ("open('a.txt', 'w').write('x')", "echo mine > a.txt", "a.txt"),
        ("open('a.txt', 'w').write('x')", "echo mine > n; mv n a.txt", "a.txt"),
        ("open('in-place.bin', 'r+').write('x')", "echo mine > in-place.bin", "in-place.bin"),
        ("os.remove('a.txt')", "echo mine > a.txt", "a.txt"),
        ("shutil.rmtree('out')", "mkdir out; echo mine > out/a--b", "out/a--b"),
        ("os.rename('out', 'x')", "mkdir out; echo mine > out/a--b", "out/a--b"),
    ],
)
def test_what_somebody_else_writes_during_a_trial_stays_beside_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, edit: str, path: str
) -> None:
    monkeypatch.setattr(probe_folder, "SLOW_S", 0.3)
    home = made(tmp_path / "home")
    before = state(home)
    seen = run(home, f"import time\n{code}\n{BY_ANOTHER.format(edit)}")
    (newer,) = home.rglob("*.during-trial")
    assert newer.read_text() == "mine\n"
    assert newer.parent == (home / path).parent
    assert seen.lost == [
        f"{home / path} was changed by another program during the trial; the file was restored, and the changed version is {newer}"
    ]
    assert {path: state(home).get(path) for path in before} == before


def test_a_lock_that_a_trial_leaves_behind_does_not_hold_up_the_users_next_run(
    tmp_path: Path,
) -> None:
    home = made(tmp_path / "home")
    (home / "old.lock").write_text("the user's own run")
    code = "os.open('train.lock', os.O_CREAT | os.O_EXCL | os.O_WRONLY); open('train.pid', 'w').write('1'); open('old.lock').read(); os._exit(9)"
    seen = run(home, code)
    assert (seen.lost, seen.files) == ([], {})
    assert {path.name for path in home.iterdir() if path.suffix in (".lock", ".pid")} == {
        "old.lock"
    }


@pytest.mark.parametrize("end", ["pass", "note_open"])
def test_a_file_that_the_program_has_open_to_its_end_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """As a log is. A program that is killed cannot say so, and is looked at before."""
    monkeypatch.setattr(probe_folder, "SLOW_S", 0.3)
    home = made(tmp_path / "home")
    before = state(home)
    probe = ProbeFolder()
    try:
        code = "import time\nf = open('log.txt', 'a', buffering=1); time.sleep(0.5); print('x', file=f); print('ready', flush=True); input()"
        variables = probe.variables(
            os.environ, trial_folder=str(tmp_path / "trial"), keeps_files=True
        )
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        with subprocess.Popen(
            command, cwd=home, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, text=True
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            if end == "note_open":
                probe.note_open([program.pid])
                program.kill()
            else:
                program.stdin.write("\n")
        assert probe.put_back() == []
    finally:
        probe.remove()
    assert {path: state(home).get(path) for path in before} == before
