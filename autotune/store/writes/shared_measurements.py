"""Measurements that all studies share: calibrations of the cost model, profiles of models, and
losses of the fp32 reference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from autotune.spec.plain import canonical
from autotune.store.connection.database import now_us
from autotune.store.rows import clean
from autotune.store.tables import calibrations, profiles, reference_losses


def save_calibration(
    connection: Connection, cluster: str, trainer: str, values: Mapping[str, Any]
) -> None:
    """Store the constants of a cluster (or GPU type) and trainer, replacing earlier ones."""
    row = {
        "cluster": clean(cluster),
        "trainer": clean(trainer),
        "at_us": now_us(),
        "values": canonical(dict(values)),
    }
    connection.execute(_replace(connection, calibrations, row))


def calibration(connection: Connection, cluster: str, trainer: str) -> dict[str, Any] | None:
    """Return the constants stored for exactly this cluster and trainer; None if there are none."""
    query = select(calibrations.c["values"]).where(
        calibrations.c.cluster == cluster, calibrations.c.trainer == trainer
    )
    text = connection.execute(query).scalar()
    return None if text is None else json.loads(text)


def save_profile(connection: Connection, fingerprint: str, values: Mapping[str, Any]) -> None:
    """Store the dry runs of a model's training, replacing earlier ones."""
    row = {"fingerprint": clean(fingerprint), "at_us": now_us(), "values": canonical(dict(values))}
    connection.execute(_replace(connection, profiles, row))


def profile(connection: Connection, fingerprint: str) -> dict[str, Any] | None:
    """Return the profile stored under exactly this fingerprint; None if there is none."""
    text = connection.execute(
        select(profiles.c["values"]).where(profiles.c.fingerprint == fingerprint)
    ).scalar()
    return None if text is None else json.loads(text)


def save_reference_losses(
    connection: Connection, model: str, data: str, seed: int, losses: Sequence[float]
) -> None:
    """Store the losses of the fp32 reference on these data, by step. A longer stored series is not
    replaced."""
    packed = np.asarray(losses, "<f8").tobytes()
    row = {
        "model": clean(model),
        "data": clean(data),
        "seed": seed,
        "at_us": now_us(),
        "losses": packed,
    }
    known = find_reference_losses(connection, model, data, seed)
    if known is None or len(known) <= len(losses):
        connection.execute(_replace(connection, reference_losses, row))


def find_reference_losses(
    connection: Connection, model: str, data: str, seed: int
) -> tuple[float, ...] | None:
    """Return the losses by step, from step 0; None if they were not measured."""
    query = select(reference_losses.c.losses).where(
        reference_losses.c.model == clean(model),
        reference_losses.c.data == clean(data),
        reference_losses.c.seed == seed,
    )
    packed = connection.execute(query).scalar()
    return None if packed is None else tuple(np.frombuffer(packed, "<f8").tolist())


def _replace(connection: Connection, table: Table, row: Mapping[str, Any]) -> Any:
    """Return an INSERT that replaces a row with the same primary key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    keys = [column.name for column in table.primary_key]
    rest = {name: value for name, value in row.items() if name not in keys}
    return dialect.insert(table).values(**row).on_conflict_do_update(index_elements=keys, set_=rest)
