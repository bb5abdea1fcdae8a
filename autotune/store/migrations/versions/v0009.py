"""The speed at which a config stands among those of all studies, by which `best` sorts: what the
finals of its study showed.

Until now `best` sorted by throughput, and what the finals had shown was looked up in the results of
the studies that it had found.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from autotune.reward import standing
from autotune.store.writes.best_trials import finals_per_gpu

revision = "0009"
down_revision = "0008"

PAGE = 1000
"""studies whose results are read at once"""
INDEXES = {
    "ix_records_standing": [],
    "ix_records_model_cluster": ["model", "cluster"],
    "ix_records_model": ["model"],
    "ix_records_cluster": ["cluster"],
}

_RESULTS = sa.text(
    """
    SELECT p.study, p.result, w.num_gpus
    FROM specs AS p JOIN studies AS s ON s.key = p.study JOIN workloads AS w ON w.key = s.workload
    WHERE p.study > :after ORDER BY p.study LIMIT :page
    """
)
_OF_STUDY = sa.text(
    """
    SELECT r.workload, r.config_key, r.throughput
    FROM trials AS t JOIN records AS r ON r.trial = t.key
    WHERE t.study = :study
    """
)
_STAND = sa.text(
    "UPDATE records SET standing = :standing WHERE workload = :workload AND config_key = :config_key"
)


def upgrade() -> None:
    """Adds the column, fills it in, and sorts the indexes by it."""
    op.add_column("records", sa.Column("standing", sa.Float(), nullable=False, server_default="0"))
    fill(op.get_bind())
    for name in (
        "ix_records_throughput",
        "ix_records_model_cluster",
        "ix_records_model",
        "ix_records_cluster",
    ):
        op.drop_index(name, table_name="records")
    for name, columns in INDEXES.items():
        op.create_index(name, "records", [*columns, "standing"])


def fill(connection: sa.Connection) -> None:
    """Fills in the column: the throughput, and where a study ended with finals what follows from
    them."""
    connection.execute(sa.text("UPDATE records SET standing = throughput"))
    after = 0
    while studies := connection.execute(_RESULTS, {"after": after, "page": PAGE}).all():
        changed = []
        for study, result, num_gpus in studies:
            if not (speeds := finals_per_gpu(json.loads(result), num_gpus)):
                continue
            for workload, config_key, throughput in connection.execute(
                _OF_STUDY, {"study": study}
            ).all():
                stands = standing(config_key, throughput, speeds)
                if stands != throughput:
                    changed.append(
                        {"standing": stands, "workload": workload, "config_key": config_key}
                    )
        if changed:
            connection.execute(_STAND, changed)
        after = studies[-1].study
