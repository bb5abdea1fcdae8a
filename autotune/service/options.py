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
"""ways to run a study: as a child process, or as a Ray job"""
LOOPBACK = "loopback"
"""name of a caller on this machine without a token"""

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
"""runners that submitted specs may use, with the options that they may set; options with addresses
or modules are excluded"""

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
"""trainers that submitted specs may use: all except `command`, which runs any program"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `burst` requests at once, plus `per_s` per second."""

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of `autotune serve`."""

    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = PORT
    """port to listen on; 0 for any free port"""
    allowed_hosts: frozenset[str] = frozenset()
    """additional names of the service in the Host header, without port"""
    public_url: str = ""
    """URL of the web page, for the metadata of Ray jobs; default: the address of the socket"""
    require_token: bool = False
    """whether callers on loopback need a token too; see `token_reason` for other options with that
    effect"""
    max_studies: int = 4
    """maximum number of studies that run at once on this host"""
    way: str = "process"
    """how a study runs: process (a child of this service) or ray (a Ray job)"""
    ray_address: str = ""
    """dashboard of the Ray cluster to join (http://HOST:8265); if empty, a cluster is started on
    loopback"""
    runners: Mapping[str, frozenset[str]] = field(default_factory=lambda: RUNNER_OPTIONS)
    """runners that specs may use, with the options that they may set"""
    trainers: frozenset[str] = TRAINERS
    """trainers that specs may use"""
    data_roots: tuple[Path, ...] = ()
    """folders with files that specs may use as `data`"""
    program_roots: tuple[Path, ...] = ()
    """folders with programs that callers with the scope run may use as a trainer's program"""
    program_user: str = ""
    """user that runs trainers' programs; default: the service's user, or the user of Ray's nodes"""
    program_environment: tuple[str, ...] = ()
    """additional environment variables for these programs"""
    max_body_bytes: int = 1 << 18
    """largest request body, bytes"""
    body_timeout_s: float = 20.0
    """time within which a request must be complete, seconds"""
    max_queued: int = 10_000
    """maximum number of studies that wait in the queue"""
    max_queued_per_owner: int = 1000
    """maximum number of waiting studies of one owner"""
    max_streams: int = 200
    """maximum number of event streams open at once"""
    max_streams_per_caller: int = 48
    """maximum number of open event streams of one caller"""
    streams_reserved_for_owners: int = 64
    """event streams reserved for the followed study's owner and admins"""
    max_connections: int = 2000
    """maximum number of connections open at once"""
    rate: Rate = Rate(per_s=500.0, burst=2000)
    """rate limit of reads, per caller"""
    write_rate: Rate = Rate(per_s=50.0, burst=1500)
    """rate limit of submissions, actions and plans, per caller"""
    refusal_rate: Rate = Rate(per_s=1.0, burst=20)
    """rate limit of wrong tokens, per address"""
    lease_s: float = 10.0
    """time after which a controller's lease expires unless renewed, seconds"""
    poll_s: float = 0.5
    """time between two rounds of the supervisor, seconds"""
    grace_s: float = 30.0
    """time for running studies to shut down when the service ends, seconds"""

    def __post_init__(self) -> None:
        one_of("way", self.way, WAYS)
        positive_int("port", self.port, least=0, at_most=MAX_PORT)
        positive_int("max_studies", self.max_studies, least=0, at_most=10_000)
        positive_int("max_queued_per_owner", self.max_queued_per_owner, at_most=self.max_queued)
        for name in ("body_timeout_s", "lease_s", "poll_s", "grace_s"):
            positive(name, getattr(self, name))

    @property
    def study_environment(self) -> dict[str, str]:
        """Environment variables for the processes of studies, which control how they start
        programs."""
        return {
            PROGRAM_USER: self.program_user,
            PROGRAM_ENVIRONMENT: ",".join(self.program_environment),
        }

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def token_reason(self) -> str:
        """The option that makes every caller need a token; empty if callers on this machine need
        none.

        A service configured for outside callers may be behind a proxy, whose requests all come from
        loopback. A service that starts programs gives callers more than studies.
        """
        outside = next((name for name in sorted(self.allowed_hosts) if not is_loopback(name)), "")
        host = ""
        with suppress(ValueError):  # not a URL, so not an address of this machine
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
    """Return whether `host` is a loopback address. The only name that counts is `localhost`."""
    name = host.strip("[]").lower()
    if name.removesuffix(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
