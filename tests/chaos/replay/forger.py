"""A forger of studies: rewrites the rows of one as plain values, then numbers and seals them again,
so that checksums and laws find nothing.

lines     the history as [kind, data] pairs        decisions  (index of its first line, index after its last fact) of each
trials    the rows of its trials, with `document` unpacked
"""

from __future__ import annotations

import copy
import json
from typing import Any

from sqlalchemy import delete, insert, select, update

from autotune.spec import ParallelConfig
from autotune.store import SqlStore
from autotune.store.packing import pack_document, unpack_document
from autotune.store.rows import config_key
from autotune.store.tables import attempts, events, records, specs, studies, trials
from autotune.store.writes.best_trials import update_records
from tests.store.forging import seal_all


class Forger:
    """The only study of a store."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        with store.database.read() as connection:
            self.study = dict(connection.execute(select(studies)).one()._mapping)
            self.result = json.loads(connection.execute(select(specs.c.result)).scalar_one())
            self.rows = [
                dict(r._mapping)
                for r in connection.execute(select(events).order_by(events.c.sequence))
            ]
            self.trials = [
                dict(r._mapping)
                for r in connection.execute(select(trials).order_by(trials.c.number))
            ]
        self.lines: list[tuple[str, dict[str, Any]]] = [
            (row["kind"], json.loads(row["data"])) for row in self.rows
        ]
        for row in self.trials:
            row["document"] = unpack_document(row["document"])

    def decisions(self) -> list[tuple[int, int]]:
        """From its line to after its last one, as far as they belong together."""
        starts = [i for i, (kind, _) in enumerate(self.lines) if kind == "study.decided"]
        found = []
        for start in starts:
            end = start + 1
            while end < len(self.lines) and self.lines[end][0].startswith(
                ("trial.", "attempt.", "machine.")
            ):
                end += 1
            found.append((start, end))
        return found

    def line(self, kind: str, **data: Any) -> dict[str, Any]:
        """The data of the first line of that kind with these values."""
        return next(
            d for k, d in self.lines if k == kind and all(d.get(n) == v for n, v in data.items())
        )

    def put_config(self, number: int, config: dict[str, Any], estimate: dict[str, Any]) -> None:
        """Another config for a trial, wherever it stands."""
        made = ParallelConfig.from_dict(config)
        row = self.trials[number]
        row["document"] |= {"config": config, "estimate": estimate}
        row |= {"config": str(made), "config_key": config_key(made)}
        self.line("trial.asked", number=number)["config"] = str(made)

    def save(self) -> None:
        """Writes all of it, numbered and sealed."""
        key, decision = self.study["key"], 0
        for kind, data in self.lines:
            if kind == "study.decided":
                decision += 1
                data["decision"] = decision
        counts = {
            "num_events": len(self.lines),
            "num_trials": len(self.trials),
            "num_decisions": decision,
        }
        with self.store.database.write() as connection:
            connection.execute(delete(records))
            connection.execute(delete(events))
            for i, (kind, data) in enumerate(self.lines):
                at = self.rows[min(i, len(self.rows) - 1)]["at_us"]
                row = {
                    "study": key,
                    "sequence": i + 1,
                    "at_us": at,
                    "kind": kind,
                    "data": json.dumps(data),
                }
                connection.execute(insert(events).values(row))
            numbers = [row["number"] for row in self.trials]
            for table in (trials, attempts):
                connection.execute(delete(table).where(table.c.number.not_in(numbers)))
            for row in copy.deepcopy(self.trials):
                row["document"] = pack_document(row["document"])
                connection.execute(update(trials).where(trials.c.key == row["key"]).values(row))
            connection.execute(update(studies).values(self.study | counts))
            connection.execute(update(specs).values(result=json.dumps(self.result)))
            for row in self.trials:
                update_records(connection, row["workload"], [row["config_key"]])
            seal_all(connection)
