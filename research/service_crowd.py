"""One caller who asks too much, and what another one notices of it.

    python -m research.service_crowd [--plans 50] [--streams 500] [--times 20]

Plans: a reader asks for plans of the largest space that ships, all at once. Streams: a reader opens
event streams of the owner's study, all at once. Meanwhile the owner submits studies, opens event
streams and receives their first event, one after the other; alone before, beside them, and alone
after. Each caller has a token and a process of its own; latencies are the owner's, from the request
to the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from autotune.store import open_store
from tests.benchmarks.service_load import served
from tests.service.http.test_fairness import LARGE
from tests.service.running import API, DEADLINE_S, bearer, spec


def ask_for_plans(url: str, token: str, count: int) -> None:
    """Prints a line when all requests are on their way, and the statuses when all are answered."""
    with httpx.Client(
        base_url=url, timeout=DEADLINE_S * 5, trust_env=False, limits=httpx.Limits()
    ) as client:

        def one(_: int) -> int:
            return client.post(f"{API}/plan", json=spec(**LARGE), headers=bearer(token)).status_code

        with ThreadPoolExecutor(count) as pool:
            answers = [pool.submit(one, number) for number in range(count)]
            print("asked", flush=True)
            print(json.dumps(Counter(answer.result() for answer in answers)), flush=True)


def open_streams(url: str, token: str, count: int, study: str) -> None:
    """Prints a line with the statuses when all streams are open or refused, and holds them until
    its stdin ends."""
    address = urlsplit(url)
    head = f"GET {API}/studies/{study}/events HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: text/event-stream\r\n"
    head += f"Authorization: Bearer {token}\r\n\r\n"
    streams = [
        socket.create_connection((address.hostname, address.port), timeout=DEADLINE_S)
        for _ in range(count)
    ]
    for stream in streams:
        stream.sendall(head.encode())
    print(
        json.dumps(Counter(stream.recv(4096).split()[1].decode() for stream in streams)), flush=True
    )
    sys.stdin.read()
    for stream in streams:
        stream.close()


def submissions_s(client: httpx.Client, times: int) -> list[float]:
    """Seconds of each submission."""

    def one() -> float:
        began_s = time.perf_counter()
        client.post(f"{API}/studies", json=spec()).raise_for_status()
        return time.perf_counter() - began_s

    return [one() for _ in range(times)]


def first_events_s(client: httpx.Client, study: str, times: int) -> list[float]:
    """Seconds from the request for a stream to its first event."""

    def one() -> float:
        began_s = time.perf_counter()
        with client.stream(
            "GET", f"{API}/studies/{study}/events", headers={"Accept": "text/event-stream"}
        ) as answer:
            answer.raise_for_status()
            next(line for line in answer.iter_lines() if line.startswith("event:"))
            return time.perf_counter() - began_s

    return [one() for _ in range(times)]


def beside(what: str, url: str, *words: str) -> subprocess.Popen[str]:
    """This module in a process of its own, once it has printed its first line."""
    argv = [sys.executable, "-m", "research.service_crowd", "--as", what, url, *words]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    print(f"{what}: {process.stdout.readline().strip()}", flush=True)
    return process


def said(name: str, seconds: list[float]) -> None:
    """Prints a row of figures."""
    row = f"median {1e3 * statistics.median(seconds):.0f} ms, slowest {1e3 * max(seconds):.0f} ms of {len(seconds)}"
    print(f"{name:>34}: {row}; load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--as", dest="role", nargs="+")
    asked = parser.parse_args()
    if asked.role:
        what, url, token, count, *study = asked.role
        if what == "plans":
            ask_for_plans(url, token, int(count))
        else:
            open_streams(url, token, int(count), *study)
        return
    with tempfile.TemporaryDirectory() as name:
        path = str(Path(name) / "results.db")
        store = open_store(path)
        owner, reader = (
            store.tokens.create(*who)[1] for who in (("owner", "submit"), ("reader", "read"))
        )
        with (
            served(Path(name), path, 0) as (url, _),
            httpx.Client(
                base_url=url, headers=bearer(owner), timeout=DEADLINE_S, trust_env=False
            ) as client,
        ):
            study = client.post(f"{API}/studies", json=spec()).json()["study"]["id"]
            said("submission alone", submissions_s(client, asked.times))
            plans = beside("plans", url, reader, str(asked.plans))
            said(f"submission beside {asked.plans} plans", submissions_s(client, asked.times))
            print(f"plans answered: {plans.communicate()[0].strip()}", flush=True)
            said("submission alone again", submissions_s(client, asked.times))
            said("first event alone", first_events_s(client, study, asked.times))
            streams = beside("streams", url, reader, str(asked.streams), study)
            said(
                f"first event beside {asked.streams} streams",
                first_events_s(client, study, asked.times),
            )
            said(f"submission beside {asked.streams} streams", submissions_s(client, asked.times))
            streams.communicate()
            said("first event alone again", first_events_s(client, study, asked.times))
        store.close()


if __name__ == "__main__":
    main()
