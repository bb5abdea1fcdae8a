"""The options of a service: where it listens, whom it admits, what specs may do, what it runs.
Values only."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from autotune.settings import PROGRAM_ENVIRONMENT, PROGRAM_USER
from autotune.spec.checks import MAX_PORT, one_of, positive, positive_int

PORT = 8600
WAYS = ("process", "ray")
LOOPBACK = "loopback"
"""the name of a caller on this machine without a token"""

RUNNER_OPTIONS: Mapping[str, frozenset[str]] = {
    "simulated": frozenset(
        {
            "noise",
            "bias",
            "memory_bias",
            "outlier_every",
            "seed",
            "faults",
            "time_scale",
            "capacity",
        }
    ),
    "local": frozenset({"max_ranks", "device"}),
    "ray": frozenset({"cpus_per_rank", "gpus_per_rank"}),
}
"""Runners that a submitted spec may name, each with the options that it may set. Options that name
addresses or modules are left out on purpose."""

TRAINERS = frozenset(
    {
        "native",
        "megatron",
        "torchtitan",
        "deepspeed",
        "nanotron",
        "accelerate",
        "hf_trainer",
        "lightning",
        "megatron_bridge",
    }
)
"""Trainers that a submitted spec may name: all but `command`, which runs any program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `burst` requests at once, `per_s` more each second."""

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of `autotune serve`."""

    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = PORT
    """port to listen on; 0 for any free one"""
    allowed_hosts: frozenset[str] = frozenset()
    """further names of the service that requests may carry in the Host header, without port"""
    public_url: str = ""
    """URL of the web page, for the metadata of Ray jobs; empty for the address listened on"""
    require_token: bool = False
    """whether callers on loopback need a token too; `asks_everybody` says what else has that
    effect"""
    max_studies: int = 4
    """most studies that run at once on this host"""
    way: str = "process"
    """how a study is run: process (a child of this service) or ray (a Ray job)"""
    ray_address: str = ""
    """dashboard of the Ray cluster to join (http://HOST:8265); if empty, a cluster is started on
    loopback"""
    runners: Mapping[str, frozenset[str]] = field(default_factory=lambda: RUNNER_OPTIONS)
    """runners that specs may name, with the options that they may set"""
    trainers: frozenset[str] = TRAINERS
    """trainers that specs may name"""
    data_roots: tuple[Path, ...] = ()
    """folders whose files a spec may name as `data`; empty for none"""
    program_roots: tuple[Path, ...] = ()
    """folders whose programs callers with the scope run may have started as a trainer's; empty for
    none"""
    program_user: str = ""
    """user as whom trainers' programs run; empty for the user of the service, or of Ray's nodes"""
    program_environment: tuple[str, ...] = ()
    """further variables of the environment that these programs see"""
    max_body_bytes: int = 1 << 18
    """size of the largest request body"""
    body_timeout_s: float = 20.0
    """time in which a request must be complete"""
    max_queued: int = 10_000
    """most studies that wait in the queue"""
    max_queued_per_owner: int = 1000
    """most of them for one owner"""
    max_streams: int = 200
    """most event streams that are open at once"""
    max_streams_per_caller: int = 48
    """most of them for one caller"""
    streams_kept_for_owners: int = 64
    """places among them that only owners of the followed study, and admins, get"""
    max_connections: int = 2000
    """most connections that are open at once"""
    rate: Rate = Rate(per_s=500.0, burst=2000)
    """rate limit of reads, per caller"""
    write_rate: Rate = Rate(per_s=50.0, burst=1500)
    """rate limit of submissions, actions and plans, per caller"""
    refusal_rate: Rate = Rate(per_s=1.0, burst=20)
    """rate limit of wrong tokens, per address"""
    lease_s: float = 10.0
    """time after which a controller's lease runs out unless it is renewed"""
    poll_s: float = 0.5
    """time between two rounds of the supervisor"""
    grace_s: float = 30.0
    """time for running studies to shut down when the service ends"""

    def __post_init__(self) -> None:
        one_of("way", self.way, WAYS)
        positive_int("port", self.port, least=0, at_most=MAX_PORT)
        positive_int("max_studies", self.max_studies, least=0, at_most=10_000)
        positive_int("max_queued_per_owner", self.max_queued_per_owner, at_most=self.max_queued)
        for name in ("body_timeout_s", "lease_s", "poll_s", "grace_s"):
            positive(name, getattr(self, name))

    @property
    def study_environment(self) -> dict[str, str]:
        """Variables for the processes of studies: how they start the programs of trainers."""
        return {
            PROGRAM_USER: self.program_user,
            PROGRAM_ENVIRONMENT: ",".join(self.program_environment),
        }

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def asks_everybody(self) -> str:
        """The option for which every caller needs a token; empty when callers of this machine need
        none.

        A service that was told of an outside may stand behind a proxy, whose requests come from
        loopback whoever sent them; and one that starts programs gives a stranger more than studies.
        """
        outside = next((name for name in sorted(self.allowed_hosts) if not is_loopback(name)), "")
        host = ""
        with suppress(ValueError):  # no URL, and so no address of this machine either
            host = urlsplit(self.public_url).hostname or ""
        reasons = {
            "--require-token": self.require_token,
            f"--host {self.host}": not self.on_loopback,
            f"--allowed-host {outside}": bool(outside),
            f"--public-url {self.public_url}": bool(self.public_url) and not is_loopback(host),
            "--program-root": bool(self.program_roots),
            "--program-user": bool(self.program_user),
        }
        return next((option for option, holds in reasons.items() if holds), "")


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address. Of names, only `localhost` counts."""
    name = host.strip("[]").lower()
    if name.removesuffix(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
