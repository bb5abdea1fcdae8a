"""The service under load: readers while studies run, and many submissions at once.

    python -m tests.benchmarks.service_load [--clients 100] [--studies 8] [--submissions 1000] [--postgresql]

Readers: each client, in another process and on a connection of its own, asks for the status of a
study once a second, starting at a random moment. Quiet: the same studies without readers, for
comparison. Flood: 16 clients submit as fast as they can; every acknowledged study must end as
COMPLETED. Latency is measured by the client, from the request to the complete answer. The store is
an SQLite file, or a PostgreSQL server that is started for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.client import Client
from autotune.spec import StudyStatus
from tests.postgresql import postgres_server
from tests.service.running import spec


@contextmanager
def served(folder: Path, store: str, studies: int) -> Iterator[tuple[str, int]]:
    """`autotune serve` in a process of its own: its address and process id."""
    argv = [
        sys.executable,
        "-c",
        "from autotune.cli import main; main()",
        "serve",
        "--runner",
        "local",
        "--port",
        "0",
    ]
    argv += ["--json", "--store", store, "--max-studies", str(studies)]
    environment = {**os.environ, "AUTOTUNE_DATA": str(folder)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the service ended without saying where it is")
            text += line
        yield json.loads(text)["url"], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@contextmanager
def stores(folder: Path, *, postgresql: bool) -> Iterator[Callable[[str], str]]:
    """What makes the address of an empty store of that name. The PostgreSQL server syncs to disk,
    as one that is used does."""
    if not postgresql:
        yield lambda name: str(folder / f"{name}.db")
        return
    with postgres_server(fsync=True) as server:
        yield lambda _: server.new_database()


def cpu_s(pid: int) -> float:
    """Processor seconds that the process has used: what a busy neighbour does not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def long_spec(seed: int) -> dict[str, Any]:
    """A study of about half a minute, nearly all of it waiting as for GPUs."""
    runner = {"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 0.5}
    return spec(
        name=f"load-{seed}",
        seed=seed,
        space={"tp": [1, 2, 4, 8], "micro_batch_size": [1, 2, 4, 8], "precision": ["bf16"]},
        budget={"max_trials": 10, "min_gain": 0},
        runner=runner,
    )


def run_studies(url: str, count: int, *, readers: int) -> tuple[list[float], list[float], int]:
    """(seconds of each study, latencies of reads in seconds, failed reads)."""
    with Client(url) as client:
        ids = [client.submit(long_spec(seed))["study"]["id"] for seed in range(count)]
        reader = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.benchmarks.service_load",
                "--read",
                url,
                str(readers),
                *ids,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        out, _ = reader.communicate()
        ends = [client.wait(study)["study"] for study in ids]
    if bad := [
        f"{end['status']}: {end['message']}" for end in ends if end["status"] != "COMPLETED"
    ]:
        raise RuntimeError(f"studies did not run: {bad[0]}")
    seconds = [float(end["elapsed_s"]) for end in ends]
    found = json.loads(out)
    return seconds, found["latencies"], found["failures"]


async def read(url: str, readers: int, ids: list[str]) -> None:
    """Asks until all studies have ended, then prints what it saw. Bare sockets: a client that works
    hard would measure itself."""
    address = urlsplit(url)
    latencies: list[float] = []
    failures = 0
    done = asyncio.Event()

    async def one(number: int) -> None:
        nonlocal failures
        request = f"GET /api/v1/studies/{ids[number % len(ids)]} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
        await asyncio.sleep(random.Random(number).random())
        incoming, outgoing = await asyncio.open_connection(address.hostname, address.port)
        while not done.is_set():
            began = time.perf_counter()
            outgoing.write(request)
            head = await incoming.readuntil(b"\r\n\r\n")
            body = await incoming.readexactly(
                int(head.lower().partition(b"content-length: ")[2].split(None, 1)[0])
            )
            took = time.perf_counter() - began
            failures += not head.startswith(b"HTTP/1.1 200 ") or not body.endswith(b"}")
            latencies.append(took)
            await asyncio.sleep(max(0.0, 1.0 - took))
        outgoing.close()

    def wait() -> None:
        with Client(url) as client:
            for study in ids:
                client.wait(study, poll_s=1.0)
        loop.call_soon_threadsafe(done.set)

    loop = asyncio.get_running_loop()
    await asyncio.gather(asyncio.to_thread(wait), *(one(number) for number in range(readers)))
    print(json.dumps({"latencies": latencies, "failures": failures}))


def flood(url: str, count: int) -> tuple[float, float, int, int]:
    """(seconds to the last acknowledgement, seconds to the last end, studies acknowledged, those of
    them that completed)."""
    quick = spec(budget={"max_trials": 1, "min_gain": 0}, measure={"finalists": 0, "max_steps": 5})
    clients = [Client(url) for _ in range(16)]
    began = time.perf_counter()

    def submit(number: int) -> str:
        answer = clients[number % 16].submit(
            {**quick, "seed": number}, idempotency_key=f"flood-{number}"
        )
        return str(answer["study"]["id"])

    with ThreadPoolExecutor(16) as pool:
        ids = set(pool.map(submit, range(count)))
    acknowledged_s = time.perf_counter() - began
    while True:
        statuses = {s["id"]: StudyStatus(s["status"]) for s in pages(clients[0])}
        if all(study in statuses and statuses[study].is_terminal for study in ids):
            break
        if time.perf_counter() - began > 3600:
            break
        time.sleep(1.0)
    ended_s = time.perf_counter() - began
    completed = sum(statuses.get(study) is StudyStatus.COMPLETED for study in ids)
    for client in clients:
        client.close()
    return acknowledged_s, ended_s, len(ids), completed


def pages(client: Client) -> Iterator[dict[str, Any]]:
    """All studies."""
    offset: int | None = 0
    while offset is not None:
        found = client.studies(limit=1000, offset=offset)
        yield from found["studies"]
        offset = found["next_offset"]


def at(values: list[float], share: float) -> float:
    """The value below which that share lies, in ms."""
    return 1e3 * sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--studies", type=int, default=8)
    parser.add_argument("--submissions", type=int, default=1000)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--read", nargs="+")
    asked = parser.parse_args()
    if asked.read:
        url, readers, *ids = asked.read
        asyncio.run(read(url, int(readers), ids))
        return
    print(
        f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", flush=True
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        stores(Path(folder), postgresql=asked.postgresql) as new_store,
    ):
        with served(Path(folder), new_store("readers"), asked.studies) as (url, pid):
            for name, readers in (
                ("quiet", 0),
                (f"{asked.clients} readers", asked.clients),
                ("quiet again", 0),
            ):
                used_s = cpu_s(pid)
                seconds, latencies, failures = run_studies(url, asked.studies, readers=readers)
                used_s = cpu_s(pid) - used_s
                line = f"{name:>14}: studies {statistics.median(seconds):6.2f} s (median of {len(seconds)})"
                if latencies:
                    line += f"; {len(latencies)} reads, p50 {at(latencies, 0.5):.1f} ms, p99 {at(latencies, 0.99):.1f} ms"
                    line += f", slowest {at(latencies, 1):.0f} ms, {failures} failed"
                line += f"; service {used_s:.1f} s of CPU"
                print(f"{line}; load {os.getloadavg()[0]:.1f}", flush=True)
        with served(Path(folder), new_store("flood"), asked.studies) as (url, pid):
            acknowledged_s, ended_s, kept, completed = flood(url, asked.submissions)
            print(
                f"{kept} submissions acknowledged in {acknowledged_s:.1f} s, {completed} completed after {ended_s:.1f} s",
                end="",
            )
            print(f"; service {cpu_s(pid):.1f} s of CPU; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
