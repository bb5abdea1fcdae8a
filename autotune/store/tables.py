"""The tables, as the newest migration leaves them (a test compares the two).

    studies     one row per study: its state, its lease and the counters of its history; narrow, because every write touches it
    specs       the submitted spec and the result of each study
    workloads   model, cluster, trainer and the rest of a workload, stored once for all studies that share it
    trials      a config in a study, with its workload; columns for values that queries use, a packed document for the others
    attempts    launches of trials, each with its packed step metrics
    events      append-only history, numbered from 1 without gaps in each study
    records     for each workload and config, the trial that represents it and the speed that ranks it; read by `best`
    observed    runs that users started themselves, appended when they end
    submissions idempotency keys
    notes, tags users' annotations of studies
    tokens      hashed access tokens
    audit       log of the service's actions
    calibrations, profiles, reference_losses   measurements that all studies share

Times end in `_us`: whole microseconds since 1970 UTC, which both databases store exactly. `key` is
a study's number inside the database; users see its `id`.

Events, trials and attempts have a checksum (`autotune.store.upkeep.checksums`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

NARROW: Any = {"sqlite_with_rowid": False}
"""Rows live in the primary key's own tree: right for narrow rows that are read in key order."""


def _study_key() -> Column[int]:
    """Return a new column that refers to a study."""
    return Column("study", Integer, ForeignKey("studies.key"), nullable=False)


workloads = Table(
    "workloads",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("fingerprint", Text, nullable=False, unique=True),
    Column("model", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("gpu", Text, nullable=False),
    Column("num_gpus", BigInteger, nullable=False),
    Column("trainer", Text, nullable=False),
    Column("seq_len", BigInteger, nullable=False),
    Column("workload", Text, nullable=False),
    Index(None, "model", "cluster"),
)

studies = Table(
    "studies",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False, index=True),
    Column("owner", Text, nullable=False),
    Column("workload", Integer, ForeignKey("workloads.key"), nullable=False),
    Column("runner", Text, nullable=False, server_default=""),
    Column("status", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False, index=True),
    Column("updated_us", BigInteger, nullable=False),
    Column("started_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("elapsed_s", Float, nullable=False),
    Column("baseline", Integer),
    Column("best", Integer),
    Column("speedup", Float),
    Column("lease_owner", Text, nullable=False),
    Column("lease_expires_us", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("num_trials", Integer, nullable=False),
    Column("num_events", BigInteger, nullable=False),
    Column("wanted", Text, nullable=False, server_default="run"),
    Column("wanted_us", BigInteger),
    Column("num_decisions", BigInteger, nullable=False, server_default="0"),
    Index(None, "status", "created_us"),
)

specs = Table(
    "specs",
    metadata,
    Column("study", Integer, ForeignKey("studies.key"), primary_key=True, autoincrement=False),
    Column("values", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("result", Text, nullable=False),
)

trials = Table(
    "trials",
    metadata,
    Column("key", Integer, primary_key=True),
    _study_key(),
    Column("number", Integer, nullable=False),
    Column("workload", Integer, ForeignKey("workloads.key"), nullable=False),
    Column("config_key", BigInteger, nullable=False),
    Column("config", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("failure", Text),
    # tokens per second per GPU of the cluster; null unless measured, and for proxy trials
    Column("throughput", Float),
    Column("reward", Float),
    Column("created_us", BigInteger, nullable=False),
    Column("started_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("document", LargeBinary, nullable=False),
    Column("checksum", LargeBinary),
    Index("uq_trials_study_number", "study", "number", unique=True),
    Index(None, "study", "status"),
    Index(None, "status", "failure"),
    Index(
        "ix_trials_measured",
        "workload",
        "config_key",
        "throughput",
        sqlite_where=text("throughput IS NOT NULL"),
        postgresql_where=text("throughput IS NOT NULL"),
    ),
)

attempts = Table(
    "attempts",
    metadata,
    Column("key", Integer, primary_key=True),
    _study_key(),
    Column("number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    Column("failure", Text),
    Column("steps", LargeBinary, nullable=False),
    Column("checksum", LargeBinary),
    Index("uq_attempts_study_number_attempt", "study", "number", "attempt", unique=True),
)

events = Table(
    "events",
    metadata,
    _study_key(),
    Column("sequence", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("checksum", LargeBinary),
    PrimaryKeyConstraint("study", "sequence"),
    **NARROW,
)

notes = Table(
    "notes",
    metadata,
    _study_key(),
    Column("number", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("author", Text, nullable=False),
    Column("text", Text, nullable=False),
    PrimaryKeyConstraint("study", "number"),
)

tags = Table(
    "tags",
    metadata,
    _study_key(),
    Column("tag", Text, nullable=False, index=True),
    PrimaryKeyConstraint("study", "tag"),
    **NARROW,
)

submissions = Table(
    "submissions",
    metadata,
    Column("owner", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    _study_key(),
    PrimaryKeyConstraint("owner", "idempotency_key"),
    **NARROW,
)

calibrations = Table(
    "calibrations",
    metadata,
    Column("cluster", Text, nullable=False),
    Column("trainer", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("values", Text, nullable=False),
    PrimaryKeyConstraint("cluster", "trainer"),
)

profiles = Table(
    "profiles",
    metadata,
    Column("fingerprint", Text, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("values", Text, nullable=False),
)

records = Table(
    "records",
    metadata,
    Column("workload", Integer, ForeignKey("workloads.key"), nullable=False),
    Column("config_key", BigInteger, nullable=False),
    Column("trial", Integer, ForeignKey("trials.key"), nullable=False, index=True),
    Column("throughput", Float, nullable=False),
    Column("standing", Float, nullable=False, server_default="0", index=True),
    Column("model", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("trainer", Text, nullable=False),
    PrimaryKeyConstraint("workload", "config_key"),
    Index("ix_records_model_cluster", "model", "cluster", "standing"),
    Index("ix_records_model", "model", "standing"),
    Index("ix_records_cluster", "cluster", "standing"),
    **NARROW,
)

observed = Table(
    "observed",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("workload", Integer, ForeignKey("workloads.key")),
    Column("program", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column(
        "throughput", Float
    ),  # tokens per second per GPU of the cluster; null unless workload, config and steps are known
    Column("ended_us", BigInteger, nullable=False),
    Column("kept_us", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index(None, "workload"),
)

reference_losses = Table(
    "reference_losses",
    metadata,
    Column("model", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("losses", LargeBinary, nullable=False),
    PrimaryKeyConstraint("model", "data", "seed"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger),
    Column("revoked_us", BigInteger),
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", Integer, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("data", Text, nullable=False),
)
