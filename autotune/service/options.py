"""How a service is run: where it listens, whom it lets in, what it lets them do, what it runs. Values only."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.spec.checks import one_of, positive, positive_int

PORT = 8600
WAYS = ("process", "ray")

RUNNER_OPTIONS: Mapping[str, frozenset[str]] = {
    "simulated": frozenset(
        {"noise", "bias", "memory_bias", "outlier_every", "seed", "faults", "time_scale", "capacity"}
    ),
    "local": frozenset({"max_ranks", "device"}),
    "ray": frozenset({"cpus_per_rank", "gpus_per_rank"}),
}
"""Runners that a spec may name over the wire, each with the options that it may set. Addresses, module names and the like are not among them."""

TRAINERS = frozenset({"native", "megatron", "torchtitan", "deepspeed", "nanotron", "accelerate", "hf_trainer"})
"""Trainers that a spec may name over the wire: all but `command`, whose argv is anybody's program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `burst` requests at once, `per_s` more each second."""

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Everything that `autotune serve` can be told."""

    host: str = "127.0.0.1"
    """address to listen at"""
    port: int = PORT
    """0: any free one"""
    allowed_hosts: frozenset[str] = frozenset()
    """names beside the address itself under which browsers and clients may ask (the Host header, without port)"""
    public_url: str = ""
    """where people find the web page, for job metadata; empty: the address listened at"""
    require_token: bool = False
    """also ask callers on loopback for a token"""
    max_studies: int = 4
    """studies that run at once on this host"""
    way: str = "process"
    """how a study is run: process (a child of this service) or ray (a Ray job)"""
    ray_address: str = ""
    """dashboard of the Ray cluster to join (http://HOST:8265); empty: one is started on loopback"""
    runners: Mapping[str, frozenset[str]] = field(default_factory=lambda: RUNNER_OPTIONS)
    """runners that specs may name, with the options that they may set"""
    trainers: frozenset[str] = TRAINERS
    """trainers that specs may name"""
    data_roots: tuple[Path, ...] = ()
    """folders in which `data` of a spec may lie; none: no files"""
    max_body_bytes: int = 1 << 18
    """largest request body"""
    body_timeout_s: float = 20.0
    """a request must have arrived whole after so long"""
    max_queued: int = 10_000
    """studies that may wait at once"""
    max_streams: int = 200
    """event streams that may be open at once"""
    max_connections: int = 2000
    """connections at once"""
    rate: Rate = Rate(per_s=500.0, burst=2000)
    """requests of one caller"""
    write_rate: Rate = Rate(per_s=50.0, burst=1500)
    """submissions, actions and plans of one caller"""
    refusal_rate: Rate = Rate(per_s=1.0, burst=20)
    """wrong tokens from one address: each costs a slow hash"""
    lease_s: float = 10.0
    """life of a controller's lease"""
    poll_s: float = 0.5
    """how often the supervisor looks for work"""
    grace_s: float = 30.0
    """how long running studies get to put things down when the service ends"""

    def __post_init__(self) -> None:
        one_of("way", self.way, WAYS)
        positive_int("port", self.port, least=0, at_most=65535)
        positive_int("max_studies", self.max_studies, least=0, at_most=10_000)
        for name in ("body_timeout_s", "lease_s", "poll_s", "grace_s"):
            positive(name, getattr(self, name))

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's own address. Names other than `localhost` count as foreign."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
