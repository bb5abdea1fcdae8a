"""The connection to a Ray cluster, which is either joined at its address, or started on this
machine or on the nodes of an allocation and ended afterwards.

A cluster started here listens on loopback only, sends no usage statistics, keeps its files in its
own folder, and requires its own token. An address is never guessed: it is given or comes from
RAY_ADDRESS, and a cluster must answer there. Ray replaces a loopback address by the machine's
external one; this is prevented if the cluster listens on loopback.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import RunnerError
from autotune.extras import require_extra
from autotune.slurm.allocation import Allocation, allocation, in_container, is_on_a_node
from autotune.spec.texts.as_text import format_duration
from autotune_workers.ray.cluster import watchdog
from autotune_workers.ray.cluster.slurm_step import RayStep
from autotune_workers.ray.placement import is_among

Answer = TypeVar("Answer")

OBJECT_STORE_BYTES = 100 << 20
"""size of Ray's object store: its minimum, because trials pass no tensors through Ray"""
NAMESPACE = "autotune"
CONNECT_S = 10.0
"""longest wait for the head to accept a connection, and for disconnecting, seconds"""
ANSWER_S = 50.0
"""longest wait for an answer of the head, even on a busy machine, seconds"""
GONE_S = 1.0
"""longest wait for disconnecting from a cluster that is gone, seconds"""
CHECK_S = 2.0
"""interval of checks of the head, seconds"""
HEAD_GONE_S = 20.0
"""time without a connection to the head after which the cluster counts as gone, seconds"""
ANSWERLESS_S = 6.0
"""longest wait for an answer while the head accepts no connection, seconds"""
LOG = logging.getLogger(__name__)
_LONGEST_TEMP = 40
"""longest path of a temporary folder, characters: paths of Ray's sockets in it must stay within the
system's 107"""
_BIND_EVERYWHERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""the variable by which Ray uses loopback only on other systems; it works on Linux too"""

_METRICS_BY_OPEN_TELEMETRY = "RAY_enable_open_telemetry"
"""disabled, because the thread that reports a driver's metrics this way outlives `ray.shutdown` and
crashes the process at its exit"""


_QUIET = (
    "RAY_USAGE_STATS_ENABLED",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    _METRICS_BY_OPEN_TELEMETRY,
)
"""variables of Ray that are set to 0 unless the environment sets them"""


class RayCluster:
    """A connection to a cluster, and the processes that must be ended with it."""

    _step: RayStep | None = None
    """the step that runs a cluster started in an allocation"""

    def __init__(
        self, *, address: str | None, num_cpus: int | None, num_gpus: int | None, dashboard: bool
    ) -> None:
        """Joins or starts a cluster. Raises `MissingExtraError` without Ray, and `RunnerError` if
        Ray cannot be reached or started."""
        self.is_here = False
        """whether the cluster was started here and consists of this machine only"""
        self.outlives_us = False
        """whether the cluster outlives this process"""
        self._temp = ""
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._contexts = contextlib.ExitStack()
        self._retry_at_s, self._unanswered = 0.0, ""
        self._silent_since_s: float | None = None
        self._checked_s = 0.0
        self._questions: list[threading.Thread] = []
        """threads of questions that may still wait for an answer"""
        self.left_out: frozenset[str] = frozenset()
        """hostnames or addresses of nodes that get no ranks"""
        address = address or os.environ.get("RAY_ADDRESS") or None
        job = spread_allocation() if address is None else None
        if address is None and job is None and "ray" not in sys.modules:
            os.environ.setdefault(_BIND_EVERYWHERE, "0")  # read when ray is imported
        for name in _QUIET:
            os.environ.setdefault(name, "0")
        require_extra("ray", "the 'ray' runner")
        import ray

        if ray.is_initialized():
            return
        try:
            if address is not None:
                self._join(address)
            elif job is not None:
                self._start_on_nodes(job, num_cpus, num_gpus)
            else:
                self._start(num_cpus, num_gpus, dashboard)
        except RunnerError:
            raise
        except Exception as error:
            self.close()
            action = f"joined at {address}" if address else "started"
            raise RunnerError(
                f"Ray cannot be {action} ({type(error).__name__}: {error})",
                remedy="run `autotune doctor` to check Ray, or use runner: local, which does not need Ray",
                field="runner",
            ) from error

    def _start(self, num_cpus: int | None, num_gpus: int | None, dashboard: bool) -> None:
        root = tempfile.gettempdir()
        self._temp = tempfile.mkdtemp(
            prefix="at-", dir=root if len(root) <= _LONGEST_TEMP else "/tmp"
        )
        os.chmod(self._temp, 0o700)
        self.is_here = True
        self._watchdog = subprocess.Popen(
            [sys.executable, "-S", "-E", watchdog.__file__, self._temp],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._contexts.enter_context(_with_new_token(Path(self._temp)))
        with _on_loopback():
            self._connect(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=dashboard,
                dashboard_host="127.0.0.1",
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                _temp_dir=self._temp,
            )

    def _start_on_nodes(self, job: Allocation, num_cpus: int | None, num_gpus: int | None) -> None:
        quiet = {name: os.environ[name] for name in _QUIET}
        self._step = RayStep(
            job,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            object_store_bytes=OBJECT_STORE_BYTES,
            environment=quiet,
        )
        try:
            address = self._step.wait_for_head()
            self._contexts.enter_context(_with_token(self._step.token))
            self._step.wait_for_nodes()
            self._connect(address=address)
        except BaseException:
            self.close()
            raise

    def _join(self, address: str) -> None:
        with _on_loopback() if answers_on_loopback(address) else contextlib.nullcontext():
            self._connect(address=address)
        self.outlives_us = True

    def _connect(self, **options: Any) -> None:
        import ray

        self._contexts.enter_context(reports_are_logged())
        with _keep_sigterm_handler(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray warns about its future defaults
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", **options)

    @property
    def address(self) -> str:
        """Address at which others can join, `host:port`."""
        import ray

        return str(ray.get_runtime_context().gcs_address)

    def totals(self) -> dict[str, float]:
        """Total CPU, GPU and other resources of all living nodes. Raises `RunnerError` if the head
        does not answer."""
        import ray

        return self.ask(ray.cluster_resources)

    def nodes(self) -> list[dict[str, float]]:
        """Resources of each living node that may get ranks. Raises `RunnerError` if the head does
        not answer."""
        return [
            dict(node["Resources"]) for node in self._living() if not is_among(node, self.left_out)
        ]

    def has(self, name: str) -> bool:
        """Whether a living node has this hostname or address. Raises `RunnerError` if the head does
        not answer."""
        return any(is_among(node, (name,)) for node in self._living())

    def addresses(self) -> set[str]:
        """Addresses of the living nodes. Raises `RunnerError` if the head does not answer."""
        return {str(node["NodeManagerAddress"]) for node in self._living()}

    def hostnames(self) -> set[str]:
        """Hostnames of the living nodes. Raises `RunnerError` if the head does not answer."""
        return {str(node["NodeManagerHostname"]) for node in self._living()}

    def _living(self) -> list[dict[str, Any]]:
        import ray

        return [node for node in self.ask(ray.nodes) if node["Alive"]]

    @property
    def is_silent(self) -> bool:
        """Whether the head accepted no connection at the last check."""
        return self._silent_since_s is not None

    def check(self) -> None:
        """Checks every `CHECK_S` whether the head accepts connections. Raises `RunnerError` once it
        has accepted none for `HEAD_GONE_S`.

        Ray itself would end this process a minute after losing the head, without an error message.
        """
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        self._check_step()
        if self._silent_for() >= HEAD_GONE_S:
            self._retry_at_s, self._unanswered = (
                math.inf,
                f"accepted no connection for {format_duration(HEAD_GONE_S)}",
            )
            raise self._no_answer(self._unanswered)

    def _check_step(self) -> None:
        """Raises `JobEndedError` if the step that runs Ray has ended."""
        if self._step is not None and self._step.has_ended:
            self._retry_at_s, self._unanswered = math.inf, "ended with its job"
            raise self._step.ended_error()

    def _silent_for(self) -> float:
        """Tries to connect to the head. Returns the seconds since the first failed try; 0 if it
        succeeds."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CHECK_S).close()
        except OSError:
            now_s = time.monotonic()
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
            return now_s - self._silent_since_s
        self._silent_since_s = None
        return 0.0

    def _no_answer(self, problem: str) -> RunnerError:
        return RunnerError(
            f"the Ray cluster's head does not answer and {problem}",
            remedy="check whether the head is running (`ray status`); the study continues once the head is back",
            field="runner",
        )

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Calls a function that needs the head, in a thread, because Ray would wait for the head
        forever.

        Raises `RunnerError` if there is no answer within `ANSWER_S`, or the head accepts no
        connection for `ANSWERLESS_S`. Calls within `ANSWER_S` after that fail at once, as do all
        calls once the head counts as gone.
        """
        answer: Future[Answer] = Future()

        def wait() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        if time.monotonic() >= self._retry_at_s:
            thread = threading.Thread(target=wait, name="autotune-ray-question", daemon=True)
            thread.start()
            self._questions = [
                *(asked for asked in self._questions if asked.is_alive()),
                thread,
            ]
            end_s, problem = time.monotonic() + ANSWER_S, ""
            while not problem:
                try:
                    return answer.result(timeout=CHECK_S)
                except TimeoutError:
                    if answer.done():
                        raise
                self._check_step()
                if self._silent_for() >= ANSWERLESS_S:
                    problem = f"accepted no connection for {format_duration(ANSWERLESS_S)}"
                elif time.monotonic() >= end_s:
                    problem = f"gave no answer within {format_duration(ANSWER_S)}"
            self._retry_at_s, self._unanswered = time.monotonic() + ANSWER_S, problem
        self._check_step()  # later calls get the same error
        raise self._no_answer(self._unanswered)

    def close(self) -> None:
        """Ends the connection, and the cluster if it was started here."""
        if not (self.is_here or self.outlives_us or self._step):
            self._contexts.close()  # the connection failed
            return
        import ray

        self._await_answers()
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray leaves sockets to the garbage collector
            if self.is_here:
                ray.shutdown()
            else:  # may wait for a head that is gone
                leaving = threading.Thread(
                    target=ray.shutdown, name="autotune-ray-shutdown", daemon=True
                )
                leaving.start()
                leaving.join(self._leave_s)
        if (
            self._watchdog is not None
        ):  # a failed start leaves processes behind, which Ray ends only with this process
            self._watchdog.communicate()
            self._watchdog = None
        if self._step is not None:
            self._step.close()
            self._step = None
        self._contexts.close()
        self.is_here = self.outlives_us = False

    @property
    def _leave_s(self) -> float:
        """Longest wait for disconnecting, seconds; short if the job has ended, because Slurm soon
        kills the rest."""
        return GONE_S if self._step is not None and self._step.has_ended else CONNECT_S

    def _await_answers(self) -> None:
        """Waits for abandoned questions, because a thread inside Ray may crash this process when
        the connection ends."""
        end_s = time.monotonic() + self._leave_s
        for question in self._questions:
            question.join(max(0.0, end_s - time.monotonic()))


@contextlib.contextmanager
def reports_are_logged() -> Iterator[None]:
    """Logs Ray's reports about its nodes, which it would print to standard output among the
    command's results."""
    from ray._private import worker

    def log(data: Mapping[str, Any], *_: Any, **__: Any) -> None:
        LOG.info("%s", "\n".join(map(str, data["lines"])))

    before, worker.print_to_stdstream = worker.print_to_stdstream, log
    try:
        yield
    finally:
        worker.print_to_stdstream = before


@contextlib.contextmanager
def _with_new_token(folder: Path) -> Iterator[None]:
    """Makes a cluster that is started in the block require its own token, readable by this user
    only, unless the environment sets a token or disables them.

    Ray itself would leave a token in the user's home folder, which silently enables tokens for
    every cluster started later.
    """
    if (
        os.environ.get("RAY_AUTH_MODE", "token") != "token"
        or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    ):
        yield
        return
    from ray._private.authentication.authentication_token_generator import (
        generate_new_authentication_token,
    )

    path = folder / "auth_token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(generate_new_authentication_token())
    with _with_token(path):
        yield


@contextlib.contextmanager
def _with_token(path: Path) -> Iterator[None]:
    """Makes Ray use the token in this file within the block, regardless of the environment and the
    home folder."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)})
    _read_tokens_again()
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)
        _read_tokens_again()


def _read_tokens_again() -> None:
    """Makes Ray read its token settings again, which it caches at first use."""
    from ray import _raylet

    of_ray: Any = _raylet  # compiled, without types
    of_ray.Config.initialize("")
    of_ray.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Keeps this program's SIGTERM handler, which Ray replaces twice: while it starts, by an exit,
    and on connecting, by one that aborts the process. The handler is restored as soon as the
    connection is made, before Ray is ready."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from ray import _raylet
    from ray._private import utils

    of_ray: Any = _raylet  # compiled, without types
    ours, replace, connection = (
        signal.getsignal(signal.SIGTERM),
        utils.set_sigterm_handler,
        of_ray.CoreWorker,
    )

    def connected(*arguments: Any, **options: Any) -> Any:
        made = connection(*arguments, **options)
        signal.signal(signal.SIGTERM, ours)
        return made

    utils.set_sigterm_handler, of_ray.CoreWorker = (lambda _: None), connected
    try:
        yield
    finally:
        utils.set_sigterm_handler, of_ray.CoreWorker = replace, connection
        signal.signal(signal.SIGTERM, ours)


def spread_allocation() -> Allocation | None:
    """The allocation on whose nodes Ray must be started: it has several nodes or runs trials in a
    container, and this machine is one of its nodes. Otherwise None."""
    job = allocation()
    return (
        job
        if job is not None and (job.num_nodes > 1 or in_container()) and is_on_a_node(job.hosts())
        else None
    )


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Makes Ray use loopback within the block, also if Ray was imported before."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def answers_on_loopback(address: str) -> bool:
    """Whether the cluster at `host:port` listens on loopback. Raises `RunnerError` if no cluster
    answers. False for addresses of other forms, which Ray handles."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in address:
        return False
    from ray.util import get_node_ip_address

    is_local = host in ("127.0.0.1", "localhost")
    for name in ("127.0.0.1", get_node_ip_address()) if is_local else (host,):
        with (
            contextlib.suppress(OSError),
            socket.create_connection((name, int(port)), timeout=CONNECT_S),
        ):
            return is_local and name == "127.0.0.1"
    raise RunnerError(
        f"no Ray cluster answers at {address}",
        remedy="check RAY_ADDRESS or the runner's address; without an address, a cluster is started on this machine",
        field="runner.address",
    )
