"""Is a review right? Published pairs of a plain config and the best one that was measured beside
it: does the review of the plain one name the knob that won?

    python -m tests.benchmarks.review_pairs [--usual] [--brief] [--every 9] [--source NAME ...]

A pair is a set of published runs of one source with the same model, sequence, GPUs, software, batch
and number format: of the configs that ran, the one nearest to data parallelism alone with the
smallest micro-batch (as `autotune` chooses a default), and the fastest. A review proposes among the
configs that were published, by the constants that ship; with --usual among those of the usual space
of its ranks, as it does for a launch, of which few were measured. Sources of `published/unseen.py`
are blind: no constant was fitted to them. --every 9: every ninth pair of vTrain, which has most of
them.

    named     an edit is about a knob in which the two differ, and goes where the best one lies
    other     edits are proposed, and none of them does
    silent    nothing is proposed
    chance    how many would be named by as many changes that are drawn from all configs in the space
    trial     nothing is proposed, and a change that is called worth a trial goes where the best one lies; `trial?`: none does
    slower    all edits together, or one alone that was published too, were measured slower than the plain config, or failed
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autotune.cost import calibration_for
from autotune.reviews.edits import Proposal, proposal, space_around
from autotune.schema.parsing import parse_space
from autotune.space import Launchable, SearchSpace, distance_from_plain
from autotune.spec import ConfigTable, ParallelConfig, Study, Workload, config_label
from autotune.trainers import trainer, trainer_names
from tests.benchmarks.published import FILES, Block
from tests.benchmarks.published.unseen import BATCHES, unseen

WORTH = 1.05
"""gain of the best config from which it is worth naming"""
VERDICTS = ("named", "trial", "other", "trial?", "silent")
SAMPLE = 400
"""configs of a space of which chance is computed"""
NOISE = 1.01
"""factor between step times that are called equal"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plain config and the best one, and what the review of the plain one says."""

    source: str
    is_blind: bool
    workload: Workload
    step_time_s: dict[ParallelConfig, float]
    """measured, of all configs; infinite where it failed"""
    plain: ParallelConfig
    best: ParallelConfig
    found: Proposal
    others: ConfigTable
    """what there was to propose"""

    @property
    def by_chance(self) -> float:
        """The chance that as many changes as the review names, drawn from all configs, have one
        that goes where the best lies."""
        count = len(self.found.edits or self.found.trials)
        rows = [row for row in range(len(self.others)) if self.others[row] != self.plain]
        rows = rows[:: max(len(rows) // SAMPLE, 1)]
        hits = sum(self._is_toward(self._changes(self.others[row])) for row in rows)
        misses = math.comb(len(rows) - hits, count) if count <= len(rows) - hits else 0
        return 1.0 - misses / math.comb(len(rows), count) if count <= len(rows) else float(hits > 0)

    @property
    def kept(self) -> float | None:
        """What is left of the best gain (in logarithms) where the first thing that the review names
        is tried and the faster launch kept; None where that was not published."""
        named = self.found.together.config if self.found.together else None
        if named is None and self.found.trials:
            changes = self.found.trials[0].changes
            named = replace(self.plain, **{name: new for name, (_, new) in changes.items()})
        return None if named is not None and named not in self.step_time_s else self._share(named)

    @property
    def kept_by_chance(self) -> float:
        """The same of a config that is drawn from those that were published."""
        return float(
            np.mean([self._share(config) for config in self.step_time_s if config != self.plain])
        )

    def _share(self, config: ParallelConfig | None) -> float:
        if config is None or not math.isfinite(self.step_time_s[config]):
            return 0.0
        return max(
            0.0, math.log(self.step_time_s[self.plain] / self.step_time_s[config])
        ) / math.log(self.gain)

    def _changes(self, config: ParallelConfig) -> dict[str, tuple[object, object]]:
        old, new = self.plain.values(), config.values()
        return {name: (old[name], new[name]) for name in old if old[name] != new[name]}

    @property
    def gain(self) -> float:
        """Of the best config."""
        return self.step_time_s[self.plain] / self.step_time_s[self.best]

    @property
    def verdict(self) -> str:
        """`named`, `other`, `trial`, `trial?` or `silent`."""
        if not self.found.edits:
            tried = self.found.trials
            return (
                "silent"
                if not tried
                else "trial"
                if any(self._is_toward(each.changes) for each in tried)
                else "trial?"
            )
        return (
            "named" if any(self._is_toward(edit.changes) for edit in self.found.edits) else "other"
        )

    def _is_toward(self, changes: object) -> bool:
        assert isinstance(changes, dict)
        for name, (old, new) in changes.items():
            if name == "accumulation_steps":  # follows from the others
                continue
            best = getattr(self.best, name)
            counted = isinstance(old, int) and not isinstance(old, bool)
            if best != old and ((new > old) == (best > old) if counted else best == new):
                return True
        return False

    @property
    def slower(self) -> list[ParallelConfig]:
        """Proposed configs that were measured slower, or failed."""
        together = self.found.together
        proposed = [] if together is None else [together.config]
        for edit in self.found.edits:
            if edit.alone is not None:
                proposed.append(
                    replace(self.plain, **{name: new for name, (_, new) in edit.changes.items()})
                )
        return [config for config in dict.fromkeys(proposed) if self._is_slower(config)]

    @property
    def tried(self) -> list[tuple[float, float]]:
        """(predicted chance of a gain, measured gain) of what is called worth a trial and was
        published; gain 0 where it failed."""
        found = []
        for edit in self.found.trials:
            config = replace(self.plain, **{name: new for name, (_, new) in edit.changes.items()})
            if config in self.step_time_s and edit.alone is not None:
                found.append(
                    (edit.alone.chance, self.step_time_s[self.plain] / self.step_time_s[config])
                )
        return found

    def _is_slower(self, config: ParallelConfig) -> bool:
        return self.step_time_s.get(config, 0.0) > NOISE * self.step_time_s[self.plain]


def pairs(names: list[str], *, usual: bool = False, every: int = 1) -> Iterator[Pair]:
    """All pairs of the sources of these names; of all of them where there is none."""
    number = 0
    for source, is_blind, block in _blocks():
        if names and source not in names:
            continue
        alike = np.stack(
            [
                block.table.world_size,
                block.table.global_batch_size,
                block.table.column("precision"),
            ],
            1,
        )
        kinds, place = np.unique(alike.astype(np.int64), axis=0, return_inverse=True)
        for kind in range(len(kinds)):
            number += source == "vtrain"
            if source == "vtrain" and number % every:
                continue
            found = _pair(
                source, is_blind, block.take(np.flatnonzero(place.reshape(-1) == kind)), usual
            )
            if found is not None:
                yield found


def _blocks() -> Iterator[tuple[str, bool, Block]]:
    for name, reader in FILES.items():
        yield from ((name, False, block) for block in reader())
    for batch in BATCHES:
        for name, blocks in unseen(batch=batch).items():
            yield from ((name, True, block) for block in blocks)


def _pair(source: str, is_blind: bool, block: Block, usual: bool) -> Pair | None:
    """None for one config alone."""
    times: dict[ParallelConfig, list[float]] = {}
    for row, config in enumerate(block.table):
        seconds = float(block.step_time_s[row])
        if block.failed[row] or np.isfinite(seconds):
            times.setdefault(config, []).append(np.inf if block.failed[row] else seconds)
    step_time_s = {config: float(np.median(seconds)) for config, seconds in times.items()}
    ran = [config for config, seconds in step_time_s.items() if np.isfinite(seconds)]
    if len(ran) < 2:
        return None
    plain = ran[int(np.lexsort(distance_from_plain(ConfigTable.of(ran), ran[0].precision))[0])]
    cluster, ranks = block.workload.cluster, plain.world_size
    per_node = min(cluster.gpus_per_node, ranks)
    workload = replace(
        block.workload,
        cluster=cluster.resized(num_nodes=max(1, ranks // per_node), gpus_per_node=per_node),
        global_batch_size=plain.global_batch_size,
    )
    launchable: Launchable | None = Launchable(trainer=trainer(_known_trainer(workload)))
    space = _usual_space(workload, plain, launchable) if usual and launchable else None
    if space is None:
        space, launchable = SearchSpace.of(workload, list(step_time_s)), None
    return Pair(
        source=source,
        is_blind=is_blind,
        workload=workload,
        step_time_s=step_time_s,
        plain=plain,
        best=min(ran, key=lambda config: step_time_s[config]),
        found=proposal(space, plain, calibration_for(workload), None, launchable),
        others=space.table,
    )


def _known_trainer(workload: Workload) -> str:
    return workload.trainer if workload.trainer in trainer_names() else "megatron"


def _usual_space(
    workload: Workload, plain: ParallelConfig, launchable: Launchable
) -> SearchSpace | None:
    """What a study of that workload would search, in the number format of the plain config; None
    where none of it is legal for its trainer."""
    kind = (
        "moe-multi-node"
        if workload.model.num_experts
        else f"dense-{'single' if workload.cluster.num_nodes == 1 else 'multi'}-node"
    )
    space = parse_space(kind)
    space = replace(space, knobs={**space.knobs, "precision": (plain.precision,)})
    valid = space_around(
        Study(name="pair", workload=workload, space=space, trainer=launchable.trainer.name), plain
    )
    if valid is None:
        return None
    can, _ = launchable.cut(valid.workload, valid.table)
    return SearchSpace.of(valid.workload, valid.table.take(can)) if can.any() else None


def _line(pair: Pair) -> str:
    shown = pair.found.edits or pair.found.trials
    edits = "; ".join(
        ", ".join(f"{n} {a}->{b}" for n, (a, b) in edit.changes.items()) for edit in shown
    )
    configs = f"{config_label(pair.plain)} -> {config_label(pair.best)}"
    job = f"{pair.source}{' (blind)' if pair.is_blind else ''}, {pair.workload.model.name}, {pair.plain.world_size} x {pair.workload.cluster.gpu.name}"
    slower = (
        "  SLOWER"
        if pair.slower
        else "  TRIAL SLOWER"
        if any(gain < 1.0 / NOISE for _, gain in pair.tried)
        else ""
    )
    return f"{pair.verdict:7} {pair.gain:5.2f}x {len(pair.step_time_s):3} {job}: {configs} | {edits or '-'}{slower}"


def main() -> None:
    """Prints one line for each pair that is worth naming, and the counts by source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--source", nargs="*", default=[])
    parser.add_argument("--usual", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    worth: Counter[tuple[str, str]] = Counter()
    slower: Counter[str] = Counter()
    chance: defaultdict[str, float] = defaultdict(float)
    kept: list[tuple[bool, float, float]] = []
    tried: list[tuple[float, float]] = []
    for pair in pairs(asked.source, usual=asked.usual, every=asked.every):
        kind = "blind" if pair.is_blind else "fitted"
        slower[kind] += bool(pair.slower)
        slower["all"] += 1
        tried += pair.tried
        if pair.gain >= WORTH:
            for name in (pair.source, f"all {kind}", "all"):
                worth[name, pair.verdict] += 1
                chance[name] += pair.by_chance
            if (share := pair.kept) is not None:
                kept.append((pair.source == "vtrain", share, pair.kept_by_chance))
        if not asked.brief and (pair.gain >= WORTH or pair.slower or pair.tried):
            print(_line(pair), flush=True)
    print(
        f"\n| source | pairs with a best config at least {WORTH - 1:.0%} faster | {' | '.join(VERDICTS)} | named or trial by chance |\n|---|---|---|---|---|---|---|---|"
    )
    for source in dict.fromkeys(name for name, _ in worth):
        counts = [worth[source, verdict] for verdict in VERDICTS]
        print(
            f"| {source} | {sum(counts)} | {' | '.join(map(str, counts))} | {chance[source]:.1f} |"
        )
    print(
        f"\nproposals that were measured slower or failed: {slower['fitted']} + {slower['blind']} blind, of {slower['all']} pairs"
    )
    for what, chosen in (("all", kept), ("all but vtrain", [row for row in kept if not row[0]])):
        ours, drawn = (np.mean([row[i] for row in chosen]) for i in (1, 2))
        print(
            f"the first change named, tried and kept where faster, has {ours:.0%} of the best's gain ({what}, {len(chosen)} pairs), one that is drawn {drawn:.0%}"
        )
    faster = sum(gain > 1.0 for _, gain in tried)
    print(
        f"worth a trial, and published: {faster} of {len(tried)} were measured faster, {sum(chance for chance, _ in tried):.1f} predicted"
    )


if __name__ == "__main__":
    main()
