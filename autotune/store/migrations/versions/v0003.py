"""Config keys that outlive new knobs, workload fingerprints that outlive new fields, and the runner
of a study as a column.

A config's key was the fingerprint of all its fields, so that a new field would have given every
config another key. Now it is the fingerprint of `VERSION:VALUES`, where VALUES are those that
differ from the defaults, as sorted JSON. The new keys are made from the column `config`, the text
`tp=2,pp=1,dp=4,...` that holds every value that is not a default. A workload's fingerprint now
leaves out what is null, false, zero or empty. The runner is read from the study's kept values.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(
        ("tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "virtual_stages"),
        1,
    ),
    "precision": "bf16",
    "recompute": "none",
    "zero_stage": 0,
    "sequence_parallel": False,
    "pp_schedule": "1f1b",
    "compile": False,
}
"""What a config of version 0002 that says nothing holds."""
BATCH = 10_000


def new_key(config: str) -> int:
    """Return the key of a config's text: 64 bits, signed."""
    values = {
        name: _value(name, text)
        for name, _, text in (pair.partition("=") for pair in config.split(","))
    }
    given = {name: value for name, value in values.items() if value != DEFAULTS[name]}
    text = f"1:{json.dumps(given, sort_keys=True, separators=(',', ':'))}"
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=16).digest()[:8], "big", signed=True
    )


def new_fingerprint(workload: Any) -> str:
    """Return the fingerprint of a workload's values that are not null, false, zero or empty."""
    text = json.dumps(_said(workload), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def upgrade() -> None:
    """Rewrites the keys of trials and records, and fills in the runner."""
    connection = op.get_bind()
    op.add_column("studies", sa.Column("runner", sa.Text(), nullable=False, server_default=""))
    specs = sa.table("specs", sa.column("study"), sa.column("values"))
    for study, values in connection.execute(sa.select(specs.c.study, specs.c["values"])).all():
        runner = json.loads(values)["runner"]
        connection.execute(
            sa.text("UPDATE studies SET runner = :runner WHERE key = :study"),
            {"runner": runner, "study": study},
        )
    workloads = sa.table("workloads", sa.column("key"), sa.column("workload"))
    for row in connection.execute(sa.select(workloads.c.key, workloads.c.workload)).all():
        connection.execute(
            sa.text("UPDATE workloads SET fingerprint = :mark WHERE key = :key"),
            {"mark": new_fingerprint(json.loads(row.workload)), "key": row.key},
        )
    trials = sa.table("trials", sa.column("key"), sa.column("config"))
    update = sa.text("UPDATE trials SET config_key = :new WHERE key = :key")
    last = -1
    while rows := connection.execute(
        sa.select(trials.c.key, trials.c.config)
        .where(trials.c.key > last)
        .order_by(trials.c.key)
        .limit(BATCH)
    ).all():
        connection.execute(update, [{"new": new_key(row.config), "key": row.key} for row in rows])
        last = rows[-1].key
    op.execute(
        "UPDATE records SET config_key = (SELECT t.config_key FROM trials AS t WHERE t.key = records.trial)"
    )


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: said for key, item in value.items() if (said := _said(item))}
    return [_said(item) for item in value] if isinstance(value, list) else value


def _value(name: str, text: str) -> Any:
    default = DEFAULTS[name]
    if isinstance(default, bool):
        return text == "true"
    return int(text) if isinstance(default, int) else text
