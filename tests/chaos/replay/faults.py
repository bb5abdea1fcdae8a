"""All that is wrong in a store: what `autotune store check` finds, decisions that do not follow,
and figures by which trials are ranked that are not those of their ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Row, and_, case, func, select

from autotune.reward import standing
from autotune.spec.study import SIMULATED
from autotune.store import SqlStore
from autotune.store.tables import records, studies, trials
from autotune.store.upkeep.examination import examine
from autotune.store.writes.best_trials import finals_per_gpu
from tests.chaos.replay.found import Replayed
from tests.chaos.replay.replaying import replay_study


def faults_of(store: SqlStore) -> list[str]:
    """In sentences."""
    found = list(examine(store).faults)
    for record in store.studies():
        replayed = replay_of(store, record.id)
        found += [f"study {record.id}: {replayed.unfollowed}"] if replayed.unfollowed else []
    return [*found, *ranking_faults(store)]


def replay_of(store: SqlStore, study_id: str) -> Replayed:
    """The replay of one study."""
    return replay_study(
        store, store.study(study_id), store.trials(study_id), store.events(study_id)
    )


def ranking_faults(store: SqlStore) -> list[str]:
    """Figures that only queries read, and that are not those of the trial's end; records that do
    not represent their trials."""
    found = []
    for record in store.studies():
        ends = {
            e.data["number"]: e.data for e in store.events(record.id) if e.kind == "trial.ended"
        }
        with store.database.read() as connection:
            key = select(studies.c.key).where(studies.c.id == record.id).scalar_subquery()
            rows = connection.execute(
                select(trials).where(trials.c.study == key).order_by(trials.c.number)
            ).all()
            stand = connection.execute(
                select(
                    trials.c.number, records.c.config_key, records.c.throughput, records.c.standing
                )
                .join(records, records.c.trial == trials.c.key)
                .where(trials.c.study == key)
            ).all()
        speeds = finals_per_gpu(record.result, record.study.workload.cluster.num_gpus)
        found += [
            f"trial {row.number}: its config stands at {row.standing}"
            for row in stand
            if row.standing != standing(row.config_key, row.throughput, speeds)
        ]
        found += _figures(rows, ends)
    return [*found, *_records(store)]


def _figures(rows: Sequence[Row], ends: dict[int, dict]) -> Iterator[str]:
    for row in rows:
        end = ends.get(row.number, {})
        failure = end.get("failure") or {}
        for name, written in (
            ("throughput", end.get("tokens_per_s_per_gpu")),
            ("reward", end.get("reward")),
            ("failure", failure.get("kind")),
        ):
            if (figure := row._mapping[name]) != written:
                yield f"trial {row.number}: it is ranked with the {name} {figure}, but ended with {written}"


def _records(store: SqlStore) -> Iterator[str]:
    """Configs whose representative is missing, is not the median of the config's trials, or has
    another throughput than its trial."""
    simulated = case((studies.c.runner == SIMULATED, 1), else_=0)
    counted = (
        select(
            trials.c.workload,
            trials.c.config_key,
            trials.c.throughput,
            simulated.label("simulated"),
        )
        .join(studies, studies.c.key == trials.c.study)
        .where(trials.c.throughput.is_not(None))
        .subquery()
    )
    config = (counted.c.workload, counted.c.config_key)
    real = (
        select(*config, func.min(counted.c.simulated).label("simulated"))
        .group_by(*config)
        .subquery()
    )
    matching = [counted.c[name] == real.c[name] for name in ("workload", "config_key", "simulated")]
    measured = (
        select(*config, real.c.simulated, func.count().label("places"))
        .join(real, and_(*matching))
        .group_by(*config, real.c.simulated)
        .subquery()
    )
    others = counted.alias()
    joined = (measured.c.workload == records.c.workload) & (
        measured.c.config_key == records.c.config_key
    )
    slower = (
        select(func.count())
        .select_from(others)
        .where(
            others.c.workload == records.c.workload,
            others.c.config_key == records.c.config_key,
            others.c.simulated == measured.c.simulated,
            others.c.throughput < records.c.throughput,
        )
        .correlate(records, measured)
        .scalar_subquery()
    )
    columns = (measured.c.workload, measured.c.places, records.c.trial, slower.label("slower"))
    query = select(*columns).join(records, joined, isouter=True)
    differs = (trials.c.key == records.c.trial) & (trials.c.throughput != records.c.throughput)
    copied = select(
        records.c.workload, records.c.throughput, trials.c.throughput.label("measured")
    ).join(trials, differs)
    with store.database.read() as connection:
        for row in connection.execute(query):
            if row.trial is None or row.slower > (row.places - 1) // 2:
                yield f"a config of workload {row.workload} is not represented by the median of its {row.places} trials"
        for copy in connection.execute(copied):
            yield f"a config of workload {copy.workload} is ranked with the throughput {copy.throughput}, but its trial has {copy.measured}"
