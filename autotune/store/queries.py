"""Reads of the store: studies, trials, steps, the best configs across all studies, counts for
dashboards, and workloads with measurements. Each uses an index."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, bindparam, case, func, select

from autotune.errors import NotFoundError
from autotune.ports import KnownWorkload, Revision, Statistics, StudyRecord
from autotune.spec import Measurement, StudyStatus, Trial, Workload
from autotune.spec.checks import nearest
from autotune.spec.runs.measurement import at_highest_peak
from autotune.store.connection.database import from_us, to_us
from autotune.store.packing import unpack_document, unpack_steps
from autotune.store.rows import read_study, read_trial
from autotune.store.tables import attempts, records, specs, studies, tags, trials, workloads

_LISTED = 5
"""maximum number of candidates in the error for an ambiguous id"""
_COMPARED = 1000
"""number of newest studies whose names are compared with an unknown name"""
_REVISION = select(studies.c.num_events, studies.c.updated_us).where(
    studies.c.key == bindparam("of_key")
)


def _study_rows() -> Select[Any]:
    """Return a query of all columns of studies except the lease's, with spec and result."""
    columns = [c for c in studies.c if not c.name.startswith("lease_")]
    return select(
        *columns, specs.c["values"].label("values_text"), specs.c.spec, specs.c.result
    ).join(specs, specs.c.study == studies.c.key)


def resolve(connection: Connection, study_id: str) -> tuple[int, str]:
    """Return (key, id) of the study with this id, else of the newest with this name, else of the
    only one whose id has this prefix. Raises `NotFoundError` if there is none, or several have the
    prefix."""
    if not study_id:
        raise NotFoundError(
            "the study's name is empty", remedy="`autotune list` shows ids and names"
        )
    by_name = studies.c.name == study_id
    for condition in (
        studies.c.id == study_id,
        by_name,
        studies.c.id.startswith(study_id, autoescape=True),
    ):
        rows = connection.execute(
            select(
                studies.c.key, studies.c.id, studies.c.name, studies.c.status, studies.c.created_us
            )
            .where(condition)
            .order_by(studies.c.created_us.desc(), studies.c.key.desc())
            .limit(_LISTED + 1)
        ).all()
        if len(rows) == 1 or (rows and condition is by_name):
            return rows[0].key, rows[0].id
        if rows:
            candidates = "; ".join(map(_described, rows[:_LISTED])) + (
                "; and others" if len(rows) > _LISTED else ""
            )
            raise NotFoundError(
                f"more than one study has an id that starts with {study_id!r}: {candidates}",
                remedy="use the whole id",
            )
    raise NotFoundError(
        f"there is no study with the id or name {study_id!r}",
        remedy=" ".join(
            filter(None, (_nearest_name(connection, study_id), "`autotune list` shows the studies"))
        ),
    )


def _nearest_name(connection: Connection, name: str) -> str:
    """Return "did you mean X?" for a study with a similar name among the newest; empty if there is
    none."""
    names = connection.scalars(
        select(studies.c.name).order_by(studies.c.created_us.desc()).limit(_COMPARED)
    )
    return nearest(name, dict.fromkeys(names))


def _described(row: Any) -> str:
    """Return a text about a study in the list of candidates for an ambiguous id."""
    return f"{row.id} ({row.name}, {from_us(row.created_us):%Y-%m-%d %H:%M}, {row.status.lower()})"


def revision(connection: Connection, study_id: str) -> Revision:
    """Return the study's current revision, from two indexed rows."""
    key, full_id = resolve(connection, study_id)
    row = connection.execute(_REVISION, {"of_key": key}).one()
    return Revision(id=full_id, events=row.num_events, updated_us=row.updated_us)


def study(connection: Connection, study_id: str) -> StudyRecord:
    """Return the record of the study with this id, name or prefix of an id."""
    key, _ = resolve(connection, study_id)
    row = connection.execute(_study_rows().where(studies.c.key == key)).one()
    return _records(connection, [row])[0]


def list_studies(
    connection: Connection,
    *,
    status: str | None = None,
    model: str = "",
    cluster: str = "",
    trainer: str = "",
    owner: str = "",
    name: str = "",
    ended_before: datetime | None = None,
    runner: str = "",
    without_runner: str = "",
    tag: str = "",
    limit: int,
    offset: int,
) -> list[StudyRecord]:
    """Return the records that match all filters, newest first."""
    newest_first = studies.c.created_us.desc(), studies.c.key.desc()
    query = select(studies.c.key).order_by(*newest_first).limit(limit).offset(offset)
    if model or cluster or trainer:
        query = query.join(workloads, workloads.c.key == studies.c.workload)
    query = query.where(
        *_equal(
            (studies.c.status, str(status or "")),
            (studies.c.owner, owner),
            (studies.c.name, name),
            (studies.c.runner, runner),
            (workloads.c.model, model),
            (workloads.c.cluster, cluster),
            (workloads.c.trainer, trainer),
        )
    )
    if without_runner:
        query = query.where(studies.c.runner != without_runner)
    if ended_before is not None:
        query = query.where(studies.c.ended_us < to_us(ended_before))
    if tag:
        query = query.where(studies.c.key.in_(select(tags.c.study).where(tags.c.tag == tag)))
    # specs are fetched only for the picked studies; otherwise those before the offset would be read,
    # too
    picked = list(connection.scalars(query))
    rows = {
        row.key: row for row in connection.execute(_study_rows().where(studies.c.key.in_(picked)))
    }
    return _records(connection, [rows[key] for key in picked])


def _equal(*filters: tuple[Column[Any], Any]) -> list[ColumnElement[bool]]:
    """Return the conditions of the filters that are neither empty nor None."""
    return [column == value for column, value in filters if value not in ("", None)]


def claimable(connection: Connection, now: int, *, limit: int) -> list[StudyRecord]:
    """Return studies that should run but are not leased: those that ran before, oldest first, then
    queued ones in the order of `waiting`."""
    active = [str(StudyStatus.RUNNING), str(StudyStatus.STOPPING)]
    active_query = (
        _study_rows()
        .where(studies.c.status.in_(active), studies.c.lease_expires_us <= now)
        .order_by(studies.c.created_us, studies.c.key)
        .limit(limit)
    )
    active_rows = connection.execute(active_query).all()
    keys = [row.key for row in waiting(connection, now, limit=limit - len(active_rows))]
    rows = {
        row.key: row for row in connection.execute(_study_rows().where(studies.c.key.in_(keys)))
    }
    return _records(connection, [*active_rows, *(rows[key] for key in keys)])


def waiting(connection: Connection, now: int, *, limit: int | None = None) -> Sequence[Any]:
    """Return (key, id, owner) of the queued studies in the order in which they will be started,
    which alternates between owners.

    The order is by the number of studies of the same owner that run or are queued before it; then
    by the time at which the owner's last study was started; then by age.
    """
    line = studies.alias("line")
    waits = (line.c.status == str(StudyStatus.QUEUED)) & (line.c.lease_expires_us <= now)
    place = func.row_number().over(
        partition_by=line.c.owner, order_by=(line.c.created_us, line.c.key)
    )
    of_owner = (
        select(
            studies.c.owner,
            func.count(case((studies.c.lease_expires_us > now, 1))).label("running"),
            func.coalesce(func.max(studies.c.started_us), 0).label("last_us"),
        )
        .where(studies.c.owner.in_(select(line.c.owner).where(waits)))
        .group_by(studies.c.owner)
        .subquery()
    )
    query = (
        select(line.c.key, line.c.id, line.c.owner)
        .join(of_owner, of_owner.c.owner == line.c.owner)
        .where(waits)
        .order_by(place + of_owner.c.running, of_owner.c.last_us, line.c.created_us, line.c.key)
        .limit(limit)
    )
    return connection.execute(query).all()


def list_trials(
    connection: Connection, study_id: str, numbers: Collection[int] | None = None
) -> list[Trial]:
    """Return the trials of a study, sorted by number; with `numbers`, only these."""
    key, full_id = resolve(connection, study_id)
    query = select(trials).where(trials.c.study == key).order_by(trials.c.number)
    if numbers is not None:
        query = query.where(trials.c.number.in_(sorted(numbers)))
    return [read_trial(full_id, row) for row in connection.execute(query)]


def steps(
    connection: Connection, study_id: str, number: int, attempt: int | None
) -> dict[str, list[float]]:
    """Return the step metrics of an attempt, by default the last one. Raises `NotFoundError` if
    there is no such trial or attempt."""
    key, full_id = resolve(connection, study_id)
    query = select(attempts.c.steps).where(attempts.c.study == key, attempts.c.number == number)
    if attempt is not None:
        query = query.where(attempts.c.attempt == attempt)
    packed = connection.execute(query.order_by(attempts.c.attempt.desc()).limit(1)).scalar()
    if packed is None:
        if attempt is None and connection.scalar(
            select(trials.c.key).where(trials.c.study == key, trials.c.number == number)
        ):
            return unpack_steps(b"")
        which = f"trial {number}" if attempt is None else f"attempt {attempt} of trial {number}"
        raise NotFoundError(f"study {full_id} has no {which}")
    return unpack_steps(packed)


def best(
    connection: Connection,
    *,
    model: str = "",
    cluster: str = "",
    trainer: str = "",
    gpu: str = "",
    num_gpus: int | None = None,
    seq_len: int | None = None,
    owner: str = "",
    runner: str = "",
    without_runner: str = "",
    workload: int | None = None,
    measured_after: datetime | None = None,
    one_each: bool,
    limit: int,
) -> list[tuple[StudyRecord, Trial]]:
    """Return the representative trials of configs, sorted by their standing in tokens/s per GPU of
    the cluster, best first. See `autotune.ports.HistoryReader.best`."""
    order = (records.c.standing.desc(), records.c.throughput.desc(), records.c.trial)
    picked = select(records.c.trial).order_by(*order)
    if gpu or num_gpus is not None or seq_len is not None:
        picked = picked.join(workloads, workloads.c.key == records.c.workload)
    if owner or runner or without_runner or measured_after is not None:
        picked = picked.join(trials, trials.c.key == records.c.trial).join(
            studies, studies.c.key == trials.c.study
        )
    picked = picked.where(
        *_equal(
            (records.c.model, model),
            (records.c.cluster, cluster),
            (records.c.trainer, trainer),
            (records.c.workload, workload),
            (workloads.c.gpu, gpu),
            (workloads.c.num_gpus, num_gpus),
            (workloads.c.seq_len, seq_len),
            (studies.c.owner, owner),
            (studies.c.runner, runner),
        )
    )
    if without_runner:
        picked = picked.where(studies.c.runner != without_runner)
    if measured_after is not None:
        picked = picked.where(trials.c.ended_us > to_us(measured_after))
    if one_each:
        each = select(workloads.c.model, workloads.c.cluster).distinct().subquery()
        here = (records.c.model == each.c.model) & (records.c.cluster == each.c.cluster)
        first = picked.where(here).limit(1).correlate(each).scalar_subquery()
        firsts = select(first.label("trial")).select_from(each).subquery()
        picked = (
            select(firsts.c.trial)
            .join(records, records.c.trial == firsts.c.trial)
            .join(trials, trials.c.key == firsts.c.trial)
            .join(studies, studies.c.key == trials.c.study)
            .order_by(studies.c.created_us.desc(), *order)
        )
    # documents are fetched only for the picked trials; otherwise all of them would be sorted
    places = {trial: place for place, trial in enumerate(connection.scalars(picked.limit(limit)))}
    query = select(trials, studies.c.id.label("study_id")).join(
        studies, studies.c.key == trials.c.study
    )
    rows = connection.execute(query.where(trials.c.key.in_(sorted(places)))).all()
    rows = sorted(rows, key=lambda row: places[row.key])
    record_of = {record.id: record for record in _by_key(connection, {row.study for row in rows})}
    pairs = [(record_of[row.study_id], read_trial(row.study_id, row)) for row in rows]
    return _at_highest_peaks(connection, rows, pairs)


def _at_highest_peaks(
    connection: Connection, rows: Sequence[Row[Any]], pairs: list[tuple[StudyRecord, Trial]]
) -> list[tuple[StudyRecord, Trial]]:
    """Return the pairs with the highest memory peak of all runs of the trial's config in its
    study."""
    same = trials.alias()
    others = (
        select(same.c.key, trials.c.document)
        .join(
            trials,
            (trials.c.workload == same.c.workload)
            & (trials.c.config_key == same.c.config_key)
            & (trials.c.study == same.c.study),
        )
        .where(
            same.c.key.in_([row.key for row in rows]),
            trials.c.throughput.is_not(None),
            trials.c.key != same.c.key,
        )
    )
    runs = defaultdict[int, list[Measurement]](list)
    for key, document in connection.execute(others):
        if (run := Trial.from_dict(unpack_document(document)).measurement) is not None:
            runs[key].append(run)
    return [
        (record, replace(trial, measurement=at_highest_peak(trial.measurement, runs[row.key])))
        if trial.measurement is not None
        else (record, trial)
        for row, (record, trial) in zip(rows, pairs, strict=True)
    ]


def _by_key(connection: Connection, keys: set[int]) -> list[StudyRecord]:
    """Return the records with these keys."""
    return _records(
        connection, connection.execute(_study_rows().where(studies.c.key.in_(sorted(keys)))).all()
    )


def _records(connection: Connection, rows: Iterable[Row[Any]]) -> list[StudyRecord]:
    """Return the records of rows of `_study_rows`, with their trial counts and tags."""
    rows = list(rows)
    keys = [row.key for row in rows]
    counts, tagged = _trial_counts(connection, keys), _tags(connection, keys)
    return [read_study(row, counts[row.key], tagged[row.key]) for row in rows]


def _tags(connection: Connection, keys: list[int]) -> dict[int, list[str]]:
    """Return the tags by study key."""
    by_study: dict[int, list[str]] = defaultdict(list)
    for key, tag in connection.execute(select(tags).where(tags.c.study.in_(keys))) if keys else ():
        by_study[key].append(tag)
    return by_study


def _trial_counts(connection: Connection, keys: list[int]) -> dict[int, dict[str, int]]:
    """Return the number of trials by study key and status."""
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    if keys:
        query = select(trials.c.study, trials.c.status, func.count()).where(
            trials.c.study.in_(keys)
        )
        for key, status, count in connection.execute(
            query.group_by(trials.c.study, trials.c.status)
        ):
            counts[key][status] = count
    return counts


def statistics(connection: Connection, now: int) -> Statistics:
    """Return the current counts of studies, trials, failures and leases."""
    by_status = select(studies.c.status, func.count()).group_by(studies.c.status)
    by_ending = select(trials.c.status, trials.c.failure, func.count()).group_by(
        trials.c.status, trials.c.failure
    )
    trial_counts: dict[str, int] = {}
    failures: dict[str, int] = {}
    for status, failure, count in connection.execute(by_ending):
        trial_counts[status] = trial_counts.get(status, 0) + count
        if failure is not None:
            failures[failure] = failures.get(failure, 0) + count
    leased = select(func.count()).select_from(studies).where(studies.c.lease_expires_us > now)
    return Statistics(
        studies={row[0]: row[1] for row in connection.execute(by_status)},
        trials=trial_counts,
        failures=failures,
        leased=int(connection.execute(leased).scalar_one()),
    )


def known_workloads(connection: Connection) -> list[KnownWorkload]:
    """Return all workloads with measurements, the one with the newest representative first."""
    configs, newest = func.count().label("configs"), func.max(records.c.trial).label("newest")
    measured = select(records.c.workload, configs, newest).group_by(records.c.workload).subquery()
    rows = connection.execute(
        select(workloads.c.key, workloads.c.workload, measured.c.configs)
        .join(measured, measured.c.workload == workloads.c.key)
        .order_by(measured.c.newest.desc())
    )
    return [
        KnownWorkload(
            key=row.key, workload=Workload.from_dict(json.loads(row.workload)), configs=row.configs
        )
        for row in rows
    ]
