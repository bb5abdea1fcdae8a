"""The supervisor: what it starts, how often, and what it does when processes die. First with a fake
launcher, then with real processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import RunnerError
from autotune.ports import StudyRecord
from autotune.service.supervise.launcher import Ended, ProcessLauncher
from autotune.service.supervise.study_fork_server import StudyForkServer
from autotune.service.supervise.supervisor import CHECK_S, HUNG_CHECKS, MAX_CRASHES, Supervisor
from autotune.service.supervise.worker import HELD, NOT_STARTED, STORE_UNAVAILABLE
from autotune.spec import StudyStatus
from autotune.store import SqlStore, open_store
from autotune.store.upkeep import maintenance
from autotune.study.process_id import this_process
from tests.service.running import Service, slow_spec, spec, until, watching

pytestmark = pytest.mark.alone


class PaperLauncher:
    """A fake launcher: starts nothing; the test says which processes end."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.over: list[Ended] = []
        self.killed: list[str] = []
        self.known: frozenset[str] = frozenset()
        self.broken = ""
        self.away = ""

    def adopted(self) -> frozenset[str]:
        return self.known

    def start(self, record: StudyRecord) -> None:
        if self.broken:
            raise RunnerError(self.broken)
        self.started.append(record.id)

    def ended(self) -> list[Ended]:
        over, self.over = self.over, []
        return over

    def kill(self, study: str) -> None:
        self.killed.append(study)

    def health(self) -> str:
        return self.away

    def scrape_targets(self) -> list[dict[str, Any]]:
        return []

    def close(self, grace_s: float) -> None:
        return None


def controller_pid(store: SqlStore, study: str) -> int | None:
    """The process that holds the study's lease, see `autotune.study.process_id`."""
    lease = store.holder(study)
    return int(lease.owner.split(":")[1]) if lease else None


class Clock:
    """Time that the test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def launcher() -> PaperLauncher:
    return PaperLauncher()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(store: SqlStore, launcher: PaperLauncher, clock: Clock) -> Supervisor:
    return supervisor(store, launcher, clock)


def submit(store: SqlStore, **changes: Any) -> str:
    document = spec(**changes)
    return api.submit_study(store, api.load_study(document), document).id


def supervisor(store: SqlStore, launcher: PaperLauncher, clock: Clock, most: int = 2) -> Supervisor:
    return Supervisor(store, launcher, max_studies=most, monotonic=clock)


def test_the_oldest_go_first_and_no_more_than_fit(
    store: SqlStore, launcher: PaperLauncher, watch: Supervisor
) -> None:
    made = [submit(store, seed=i) for i in range(5)]
    watch.run_once()
    watch.run_once()
    assert launcher.started == made[:2]
    api.act(store, made[0], "cancel")
    launcher.over = [Ended(study=made[0], code=0)]
    watch.run_once()
    assert launcher.started == made[:3]


@pytest.mark.parametrize("most", [1, 3])
def test_a_study_of_another_owner_gets_the_next_free_place(
    store: SqlStore, most: int, launcher: PaperLauncher, clock: Clock
) -> None:
    """However many of the first owner wait, and however long."""
    document = spec()

    def of(owner: str, seed: int) -> str:
        return api.submit_study(
            store, api.load_study(document | {"seed": seed}), document, owner=owner
        ).id

    hog = [of("hog", seed) for seed in range(40)]
    watch = supervisor(store, launcher, clock, most=most)
    watch.run_once()
    assert launcher.started == hog[:most]
    for study in hog[:most]:
        lease = store.claim(study, "elsewhere:1:1", lease_s=600)
        store.set_status(study, StudyStatus.RUNNING, lease=lease, expect=[StudyStatus.QUEUED])
    other = [of("other", 100 + seed) for seed in range(2)]
    watch.run_once()
    assert launcher.started == hog[:most], "no place is free"
    for number, study in enumerate(hog[: most + 1][:most]):
        lease = store.holder(study)
        store.set_status(study, StudyStatus.COMPLETED, lease=lease, expect=[StudyStatus.RUNNING])
        launcher.over = [Ended(study=study, code=0)]
        watch.run_once()
        assert launcher.started[most] == other[0], number
    assert set(launcher.started[most:]) <= {*other, *hog[most : 2 * most]}


def test_a_problem_and_its_end_are_logged_once(
    store: SqlStore, caplog: pytest.LogCaptureFixture, launcher: PaperLauncher
) -> None:
    caplog.set_level("INFO", "autotune.service")
    watch = Supervisor(store, launcher, max_studies=2, poll_s=0.01)
    with watching(watch):
        launcher.away = "Ray's dashboard cannot be reached"
        until(lambda: caplog.messages)
        time.sleep(0.1)
        launcher.away = ""
        until(lambda: len(caplog.messages) > 1)
    assert caplog.messages == [
        "Ray's dashboard cannot be reached",
        "the problem is resolved, and studies continue",
    ]


def test_a_study_of_another_runner_waits_with_a_message(
    store: SqlStore, launcher: PaperLauncher, clock: Clock
) -> None:
    others = [submit(store, seed=i, runner={"kind": "ray"}) for i in range(5)]
    own = [submit(store, seed=i) for i in range(2)]
    watch = Supervisor(
        store, launcher, max_studies=2, runners=frozenset({"local", "simulated"}), monotonic=clock
    )
    for _ in range(4):
        watch.run_once()
    assert launcher.started == own
    for study in others:
        record = store.study(study)
        assert (record.status, "'ray' runner" in record.message) == (StudyStatus.QUEUED, True)
        reported = [
            event
            for event in store.events(study)
            if "waits for a service" in str(event.data.get("message"))
        ]
        assert len(reported) == 1


def test_paused_and_leased_studies_are_not_started(
    store: SqlStore, launcher: PaperLauncher, clock: Clock
) -> None:
    paused, held, free = (submit(store, seed=i) for i in range(3))
    api.act(store, paused, "pause")
    assert store.claim(held, "other-host:1:1", lease_s=60)
    supervisor(store, launcher, clock, most=9).run_once()
    assert launcher.started == [free]


def test_studies_that_outlived_a_service_of_this_host_count_toward_the_limit(
    store: SqlStore, launcher: PaperLauncher, clock: Clock
) -> None:
    running, waiting = submit(store), submit(store, seed=1)
    lease = store.claim(running, this_process(), lease_s=60)
    store.set_status(running, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    full = supervisor(store, launcher, clock, most=1)
    full.run_once()
    assert (launcher.started, full.running) == ([], {running}), "health counts it, too"
    supervisor(store, launcher, clock, most=2).run_once()
    assert launcher.started == [waiting]


def test_a_study_of_a_dead_process_is_started_before_its_lease_expires(
    store: SqlStore, launcher: PaperLauncher, watch: Supervisor
) -> None:
    """The clock may have been set back since: then leases of processes that died with their service
    run for as long as it was."""
    study = submit(store)
    host, pid, start, place = this_process().split(":")
    lease = store.claim(study, f"{host}:{pid}:{int(start) + 1}:{place}", lease_s=3600)
    store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    watch.run_once()
    watch.run_once()
    assert launcher.started == [study]


def test_a_study_whose_process_dies_is_restarted_with_backoff_and_finally_fails(
    store: SqlStore, launcher: PaperLauncher, clock: Clock, watch: Supervisor
) -> None:
    study = submit(store)
    for death in range(1, MAX_CRASHES + 1):
        watch.run_once()
        assert launcher.started == [study] * death
        launcher.over = [Ended(study=study, code=-9)]
        watch.run_once()
        assert launcher.started == [study] * death  # not at once
        clock.now_s += 100
    record = store.study(study)
    assert record.status is StudyStatus.FAILED
    assert "killed by signal 9" in record.message
    watch.run_once()
    assert len(launcher.started) == MAX_CRASHES


@pytest.mark.thorough
@pytest.mark.parametrize("code", [HELD, STORE_UNAVAILABLE, NOT_STARTED])
def test_a_held_lease_or_an_unavailable_store_is_not_a_crash(
    store: SqlStore, code: int, launcher: PaperLauncher, clock: Clock, watch: Supervisor
) -> None:
    study = submit(store)
    for _ in range(3 * MAX_CRASHES):
        watch.run_once()
        launcher.over = [Ended(study=study, code=code)]
        watch.run_once()
        clock.now_s += 10
    assert len(launcher.started) == 3 * MAX_CRASHES
    assert store.study(study).status is StudyStatus.QUEUED


def test_the_study_of_a_job_stopped_by_a_user_is_cancelled(
    store: SqlStore, launcher: PaperLauncher, watch: Supervisor
) -> None:
    study = submit(store)
    watch.run_once()
    launcher.over = [Ended(study=study, code=1, stopped_by_user=True)]
    watch.run_once()
    assert store.study(study).status is StudyStatus.CANCELLED
    assert launcher.started == [study]


def test_a_failed_start_is_retried(store: SqlStore, launcher: PaperLauncher) -> None:
    study = submit(store)
    launcher.broken = "Ray is away"
    watch = Supervisor(store, launcher, max_studies=1, poll_s=0.02)
    with watching(watch):
        until(lambda: "Ray is away" in watch.health())
        launcher.broken = ""
        until(lambda: launcher.started == [study])
        until(lambda: watch.health() == "")


def test_a_process_that_does_not_end_with_its_study_is_killed(
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
    launcher: PaperLauncher,
    clock: Clock,
    watch: Supervisor,
) -> None:
    from autotune.service.supervise import supervisor as module

    monkeypatch.setattr(module, "STRAGGLE_S", -1.0)
    study = submit(store)
    watch.run_once()
    api.act(store, study, "cancel")
    clock.now_s += 60
    watch.run_once()
    assert launcher.killed == [study]


def test_a_study_that_is_deleted_while_its_restart_is_due_does_not_stop_the_others(
    store: SqlStore, launcher: PaperLauncher, watch: Supervisor
) -> None:
    gone = submit(store)
    watch.run_once()
    launcher.over = [Ended(study=gone, code=-9)]
    watch.run_once()
    api.act(store, gone, "cancel")
    api.delete_study(store, gone)
    other = submit(store, seed=1)
    watch.run_once()
    assert launcher.started == [gone, other]


def test_the_process_of_a_deleted_study_is_killed_and_other_studies_continue(
    store: SqlStore, launcher: PaperLauncher, clock: Clock
) -> None:
    gone, other = submit(store), submit(store, seed=1)
    watch = supervisor(store, launcher, clock, most=3)
    watch.run_once()
    api.act(store, gone, "cancel")
    api.delete_study(store, gone)
    later = submit(store, seed=2)
    clock.now_s += CHECK_S
    watch.run_once()
    assert launcher.killed == [gone]
    assert launcher.started == [gone, other, later]


@pytest.mark.thorough
def test_a_hung_process_is_killed_and_a_waiting_one_is_not(
    store: SqlStore, launcher: PaperLauncher, clock: Clock, watch: Supervisor
) -> None:
    study = submit(store)
    before = store.claim(study, "elsewhere", lease_s=0.01)
    assert before is not None
    store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=before)

    def look(times: int) -> None:
        for _ in range(times):
            clock.now_s += CHECK_S
            watch.run_once()

    until(lambda: watch.run_once() or launcher.started)
    look(2 * HUNG_CHECKS)
    assert launcher.killed == [], "what lies is the lease of the one before"
    lease = until(lambda: store.claim(study, "ours", lease_s=0.01))
    for _ in range(2 * HUNG_CHECKS):
        lease = store.renew(lease, lease_s=0.01)
        look(1)
    assert launcher.killed == []
    look(HUNG_CHECKS)
    assert launcher.killed == [study]


def test_a_frozen_process_of_an_earlier_service_takes_no_place(
    store: SqlStore, launcher: PaperLauncher, clock: Clock
) -> None:
    study = submit(store)
    lease = store.claim(study, this_process(), lease_s=0.5)
    assert lease is not None
    store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    watch = supervisor(store, launcher, clock, most=1)
    watch.run_once()
    assert launcher.started == []
    until(lambda: watch.run_once() or launcher.started == [study])


@pytest.mark.slow
def test_a_frozen_process_of_the_only_supervisor_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.service.supervise import supervisor as module

    monkeypatch.setattr(module, "HUNG_CHECKS", 3)
    with Service(tmp_path, supervised=True) as service, service.client() as client:
        study = client.submit(slow_spec())["study"]["id"]
        until(lambda: client.status(study)["study"]["trials"].get("RUNNING"))
        pid = until(lambda: controller_pid(service.store, study))
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        while controller_pid(service.store, study) in (pid, None):
            assert time.monotonic() - began < 300
            time.sleep(0.5)
        print(f"replaced after {time.monotonic() - began:.0f} s")


@pytest.mark.thorough
def test_two_supervisors_on_one_store_run_each_study_once(store: SqlStore, tmp_path: Path) -> None:
    studies = [submit(store, seed=i) for i in range(6)]
    second = open_store(tmp_path / "results.db")
    pair = [
        Supervisor(
            s,
            ProcessLauncher(tmp_path / f"logs{i}", store_url=str(tmp_path / "results.db")),
            max_studies=3,
            poll_s=0.1,
        )
        for i, s in enumerate((store, second))
    ]
    with closing(second), watching(*pair):
        until(lambda: all(store.study(study).status.is_terminal for study in studies))
    for study in studies:
        kinds = [event.kind for event in store.events(study)]
        assert store.study(study).status is StudyStatus.COMPLETED
        assert kinds.count("study.completed") == 1
        assert kinds.count("trial.asked") == len(store.trials(study))
        assert "trial.late" not in kinds


@pytest.mark.slow
def test_two_services_on_one_store_can_control_each_others_studies(tmp_path: Path) -> None:
    document = spec(
        budget={"max_trials": 4, "min_gain": 0},
        runner={"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 1.0},
    )
    with Service(tmp_path, supervised=True) as first, Service(tmp_path, supervised=True) as second:
        with first.client() as one, second.client() as other:
            study = one.submit(document, idempotency_key="one")["study"]["id"]
            assert other.submit(document, idempotency_key="one")["study"]["id"] == study
            until(lambda: other.status(study)["study"]["trials"].get("RUNNING"))
            other.pause(study)
            until(lambda: one.status(study)["study"]["status"] == "PAUSED")
            one.resume(study)
            done = other.wait(study)
            assert done["study"]["status"] == "COMPLETED"
            assert one.status(study)["best"] == done["best"]
        fences = [
            event.data["fence"]
            for event in first.store.events(study)
            if event.kind == "study.claimed"
        ]
        assert fences == [1, 2], "one controller at a time, one before the pause and one after"
        assert maintenance.check(first.store) == []


@pytest.mark.thorough
def test_killed_controllers_are_replaced_and_change_nothing_in_the_result(tmp_path: Path) -> None:
    document = spec(
        budget={"max_trials": 3, "min_gain": 0},
        runner={"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 0.1},
    )
    with Service(tmp_path / "calm", supervised=True) as calm, calm.client() as client:
        undisturbed = client.wait(client.submit(document)["study"]["id"])
    with Service(tmp_path / "rough", supervised=True) as rough, rough.client() as client:
        study = client.submit(document)["study"]["id"]
        for trials in (1, 2):
            until(lambda: len(client.trials(study)) >= trials)  # noqa: B023  called at once
            pid = until(lambda: controller_pid(rough.store, study))
            os.kill(pid, signal.SIGKILL)
            until(lambda: controller_pid(rough.store, study) not in (pid, None))  # noqa: B023
        done = client.wait(study)
    assert done["study"]["status"] == "COMPLETED"
    assert done["best"]["config"] == undisturbed["best"]["config"]
    assert (
        done["best"]["measurement"]["step_times_s"]
        == undisturbed["best"]["measurement"]["step_times_s"]
    )


@pytest.mark.thorough
def test_a_service_that_ends_leaves_its_studies_to_the_next(tmp_path: Path) -> None:
    with Service(tmp_path, supervised=True) as first, first.client() as client:
        study = client.submit(slow_spec())["study"]["id"]
        until(lambda: client.status(study)["study"]["trials"].get("RUNNING"))
    store = open_store(tmp_path / "results.db")
    assert store.study(study).status is StudyStatus.RUNNING
    assert store.holder(study) is None
    store.close()
    with Service(tmp_path, supervised=True) as second, second.client() as client:
        until(lambda: second.store.holder(study))
        client.act(study, "cancel")
        until(lambda: study not in second.supervisor.running)


@pytest.mark.thorough
def test_a_failed_fork_does_not_end_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    server = StudyForkServer(tmp_path, lease_s=1.0)
    monkeypatch.setattr(os, "fork", refuse)
    server._start("abc")
    output = capfd.readouterr()
    assert json.loads(output.out) == {"ended": "abc", "pid": 0, "code": NOT_STARTED}
    assert "abc cannot be started now" in output.err


@pytest.mark.thorough
def test_a_fork_server_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with Service(tmp_path, supervised=True) as service, service.client() as client:
        study = client.submit(slow_spec())["study"]["id"]
        child = until(lambda: controller_pid(service.store, study))
        os.kill(service.launcher._fork_server.pid, signal.SIGKILL)
        assert client.wait(client.submit(spec())["study"]["id"])["study"]["status"] == "COMPLETED"
        # its process lives, and keeps its lease
        assert client.status(study)["study"]["status"] == "RUNNING"
        client.act(study, "cancel")
        until(
            lambda: (
                not Path(f"/proc/{child}").exists()
                or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
            )
        )


@pytest.mark.thorough
def test_the_studies_of_a_fork_server_that_dies_between_two_polls_continue(
    store: SqlStore, tmp_path: Path
) -> None:
    """Where another study were started on a new server before anybody noticed, the children of the
    old one would count as running for ever."""
    study = api.load_study(spec())
    running, waiting = store.submit(study, {}), store.submit(study, {})
    launcher = ProcessLauncher(tmp_path / "logs", store_url=str(tmp_path / "results.db"))
    try:
        launcher.start(running)
        launcher._fork_server.kill()
        launcher._fork_server.wait()
        with pytest.raises(RunnerError, match="has died"):
            launcher.start(waiting)
        assert [end.study for end in launcher.ended()] == [running.id]
        launcher.start(waiting)
    finally:
        launcher.close(30.0)
