"""How the sequences of a step fall to data-parallel ranks, mini-batches and micro-batches,
simulated from the distribution of their lengths.

    N sequences of P prompts   R ranks   M mini-batches   b sequences of a rank and mini-batch = N / (R M)   C tokens that a micro-batch may hold   k micro-batches
    T tokens of a micro-batch   Q sum of the squares of its sequences' lengths: attention's work

lengths     those of one prompt's responses are alike: ln-lengths are the sum of a part of the prompt and a part of the response, whose variances have the shares rho and 1 - rho
ranks       'batch': all sequences are dealt by length so that ranks have equally many tokens, each rank's are ordered by length, and a mini-batch is the next b of them (verl:
            `balance_batch`), so that mini-batches that ranks work on at once are alike. 'in_order': the same, but each rank keeps the order in which they came (verl before
            0.6), so that its mini-batches are unequal still. 'mini_batch': each mini-batch is dealt by itself (NeMo-RL: `shard_by_batch_size`). 'none': rank r takes the r-th part
            of what comes, in which responses to one prompt follow one another
dealing     sequences in falling order go to 1 2 .. n n .. 2 1 1 2 ..: equally many for each, and sums that differ by less than the longest. Karmarkar and Karp's differencing, which verl uses, comes
            nearer; the difference is below 1% from 8 sequences each on
packing     k = ceil(tokens / C) of the rank that needs most, as collectives want it of all (verl: `rearrange_micro_batches`, NeMo-RL: bins are equally many on all ranks). Then k sequences at a
            time, in falling order, go to the micro-batches in the order of what they hold, the longest where least is (Graham's LPT in rounds)
time        the ranks meet after each micro-batch (sharded weights, experts), or after each mini-batch. Of those that meet the slowest counts, by its work T + kappa Q

Steps are drawn until `DRAWN` sequences are there, so that what is left of the draw is small beside
the differences between configs; all configs see the same draws.

Trials of the trainer's phases take their sequences from the same functions: `step_lengths` draws
those of a step, the same for every config of a study, and `of_rank` deals and packs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.spec.post_training import PostTraining

Floats = NDArray[np.float64]
DRAWN = 1 << 15
"""sequences that a simulation draws at least"""
MOST_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What a rank does in one pass over a mini-batch, on the ranks that others wait for: numbers,
    or columns with one for each row of a table (`of_rows`)."""

    micro_batches: float
    """per mini-batch, on average"""
    sequences: float
    """of a rank and mini-batch"""
    tokens: float
    """of a micro-batch, padding included, of the slowest of the ranks that meet"""
    attended: float
    """length of a sequence whose tokens attend to as many others: sum of squares over tokens, of
    the same"""
    most_tokens: float
    """of the fullest micro-batch"""
    waiting: float
    """work of the slowest over work on average, less 1: what balancing could win"""
    padding: float
    """padding's share of all tokens, 0 to 1"""
    spread: float
    """standard deviation of a step's work over its mean, from step to step"""

    @classmethod
    def of_rows(cls, kinds: Sequence[Packed], of_row: NDArray[np.intp]) -> Packed:
        """Columns; `of_row`: the kind of each row, shape (N,)."""
        columns: dict[str, Any] = {
            f.name: np.array([getattr(kind, f.name) for kind in kinds])[of_row] for f in fields(cls)
        }
        return cls(**columns)


def drawn_lengths(asked: PostTraining, steps: int, seed: int | Sequence[int] = 0) -> Floats:
    """Tokens of every sequence, shape (steps, prompts * responses), those of one prompt side by
    side."""
    random = np.random.default_rng(seed)
    shape = (steps, asked.prompts, asked.responses)
    own, shared = random.standard_normal(shape), random.standard_normal(shape[:2])
    mixed = np.sqrt(asked.same_prompt) * shared[..., None] + np.sqrt(1.0 - asked.same_prompt) * own

    def shares(values: Floats) -> Floats:
        """Ranks of the values, 0 to 1: each quantile is drawn once."""
        flat = values.reshape(-1)
        places = np.empty(len(flat))
        places[np.argsort(flat, kind="stable")] = (np.arange(len(flat)) + 0.5) / len(flat)
        return places.reshape(values.shape)

    responses = asked.response_lengths.at(shares(mixed))
    prompts = asked.prompt_lengths.at(shares(random.standard_normal(shape[:2])))
    return np.maximum(responses + prompts[..., None], 1.0).reshape(steps, -1)


@lru_cache(maxsize=4)
def _drawn(asked: PostTraining, steps: int) -> Floats:
    """Those of `drawn_lengths`, which all ways to deal and to pack them share."""
    return drawn_lengths(asked, steps)


def packed(
    asked: PostTraining,
    *,
    ranks: int,
    mini_batches: int,
    micro_batch: int,
    capacity: float,
    balance: str,
    sorted_by_length: bool = False,
    meets_each: bool = False,
    kappa: float = 0.0,
) -> Packed:
    """The pass over a mini-batch of these ranks. `capacity`: tokens of a micro-batch, 0:
    `micro_batch` sequences each; `mini_batches`: 1 for a pass over the whole batch."""
    return _packed(
        asked,
        ranks,
        mini_batches,
        micro_batch,
        capacity,
        balance,
        sorted_by_length,
        meets_each,
        kappa,
    )


@lru_cache(maxsize=4096)
def _packed(
    asked: PostTraining,
    ranks: int,
    mini_batches: int,
    micro_batch: int,
    capacity: float,
    balance: str,
    sorted_by_length: bool,
    meets_each: bool,
    kappa: float,
) -> Packed:
    dealt = _dealt(asked, ranks, mini_batches, balance)
    each = dealt.shape[-1]
    if capacity > 0:
        count = _counts(dealt, capacity)
        tokens, work, _ = _filled(-np.sort(-dealt, axis=-1), count)
        real = tokens.sum()
    else:
        count = np.full(dealt.shape[:2], -(-each // micro_batch), dtype=np.int64)
        if sorted_by_length:
            dealt = -np.sort(-dealt, axis=-1)
        short = count.flat[0] * micro_batch - each
        grouped = np.pad(dealt, [(0, 0)] * 3 + [(0, int(short))]).reshape(
            *dealt.shape[:-1], -1, micro_batch
        )
        real = grouped.sum()
        if asked.padded:
            tokens = grouped.max(axis=-1) * (grouped > 0).sum(axis=-1)
            work = grouped.max(axis=-1) * tokens
        else:
            tokens, work = grouped.sum(axis=-1), (grouped**2).sum(axis=-1)
    load = tokens + kappa * work
    if meets_each:
        slowest = load.argmax(axis=2)[:, :, None, :]
        on_slowest = [
            np.take_along_axis(v, slowest, axis=2)[:, :, 0, :] for v in (tokens, work, load)
        ]
    else:
        slowest = load.sum(axis=-1).argmax(axis=2)[:, :, None, None]
        on_slowest = [
            np.take_along_axis(v, slowest, axis=2)[:, :, 0, :] for v in (tokens, work, load)
        ]
    there, worked, loaded = on_slowest
    by_step = loaded.sum(axis=(1, 2))
    batches = float(count.sum())
    return Packed(
        micro_batches=batches / count.size,
        sequences=float(each),
        tokens=float(there.sum() / batches),
        attended=float(max(worked.sum() / max(there.sum(), 1.0), 1.0)),
        most_tokens=float(tokens.max()),
        waiting=float(by_step.mean() / load.sum(axis=(1, 3)).mean(axis=1).mean() - 1.0),
        padding=float(1.0 - real / tokens.sum()),
        spread=float(by_step.std() / by_step.mean()),
    )


def _counts(dealt: Floats, capacity: float) -> NDArray[np.int64]:
    """Micro-batches of each rank, by (step, mini-batch)."""
    most = np.ceil(dealt.sum(axis=-1) / capacity).max(axis=-1)
    return np.asarray(np.clip(most, 1, dealt.shape[-1]).astype(np.int64))


def _filled(falling: Floats, count: NDArray[np.int64]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """(tokens, sums of squares) of micro-batches, shape (steps, mini-batches, ranks, most), and to
    which each sequence goes. `falling`: lengths of each rank in falling order, `count`:
    micro-batches by (step, mini-batch)."""
    shape = (*falling.shape[:-1], int(count.max()))
    tokens, work, goes_to = (
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(falling.shape, dtype=np.int64),
    )
    for bins in np.unique(count):
        where = count == bins
        lengths = falling[where]
        sequences = lengths.shape[-1]
        rounds = -(-sequences // bins)
        ranks = lengths.shape[:-1]
        by_round = np.pad(lengths, [(0, 0), (0, 0), (0, rounds * bins - sequences)]).reshape(
            -1, rounds, bins
        )
        own, squares = np.zeros((len(by_round), bins)), np.zeros((len(by_round), bins))
        places = np.empty(by_round.shape, dtype=np.int64)
        rank = np.arange(len(by_round))[:, None]
        for i in range(rounds):  # the longest of a round goes where least is
            emptiest = places[:, i] = np.argsort(own, axis=-1, kind="stable")
            own[rank, emptiest] += by_round[:, i]
            squares[rank, emptiest] += by_round[:, i] ** 2
        own, squares = own.reshape(*ranks, bins), squares.reshape(*ranks, bins)
        tokens[where, :, :bins], work[where, :, :bins] = own, squares
        goes_to[where] = places.reshape(*ranks, rounds * bins)[..., :sequences]
    return tokens, work, goes_to


def step_lengths(asked: PostTraining, step: int, seed: int) -> Floats:
    """Tokens of the sequences of a trial's step: they depend on the study's seed alone, so that all
    its configs see the same."""
    block, row = divmod(step, MOST_STEPS)
    return np.asarray(_block(asked, seed, block)[row])


def relative_work(asked: PostTraining, step: int, seed: int, kappa: float) -> float:
    """Work T + kappa Q of that step over that of a mean one."""
    work = [lengths.sum(axis=-1) + kappa * (lengths**2).sum(axis=-1) for lengths in (
        step_lengths(asked, step, seed), _block(asked, seed, 0))]  # fmt: skip
    return float(work[0] / work[1].mean())


@lru_cache(maxsize=4)
def _block(asked: PostTraining, seed: int, block: int) -> Floats:
    return drawn_lengths(asked, MOST_STEPS, (seed, block))


def of_rank(
    lengths: Floats,
    rank: int,
    *,
    ranks: int,
    mini_batches: int,
    micro_batch: int,
    capacity: float,
    balance: str,
    sorted_by_length: bool = False,
) -> list[list[NDArray[np.int64]]]:
    """The micro-batches of a rank in each mini-batch of a step with these lengths, as the numbers
    of their sequences. Names as those of `packed`."""
    places = _places(lengths[None], ranks, mini_batches, balance)
    dealt = lengths[places]
    falling = np.argsort(-dealt, axis=-1, kind="stable")
    if capacity <= 0:
        own = places[0, :, rank]
        own = np.take_along_axis(own, falling[0, :, rank], axis=-1) if sorted_by_length else own
        return [
            [part[i : i + micro_batch] for i in range(0, len(part), micro_batch)] for part in own
        ]
    count = _counts(dealt, capacity)
    _, _, goes_to = _filled(np.take_along_axis(dealt, falling, axis=-1), count)
    found = []
    for m, bins in enumerate(count[0]):
        own = places[0, m, rank][falling[0, m, rank]]
        found.append([own[goes_to[0, m, rank] == k] for k in range(bins)])
    return found


@lru_cache(maxsize=64)
def _dealt(asked: PostTraining, ranks: int, mini_batches: int, balance: str) -> Floats:
    """Lengths by (step, mini-batch, rank, place)."""
    sequences = asked.sequences
    steps = int(min(MOST_STEPS, max(1, -(-DRAWN // sequences))))
    lengths = _drawn(asked, steps)
    each = -(-sequences // (ranks * mini_batches))
    # a batch that does not divide is filled up by repeating
    missing = each * ranks * mini_batches - sequences
    if missing:
        lengths = np.take(lengths, np.arange(sequences + missing) % sequences, axis=1)
    places = _places(lengths, ranks, mini_batches, balance)
    return np.take_along_axis(lengths, places.reshape(steps, -1), axis=-1).reshape(places.shape)


def _places(lengths: Floats, ranks: int, mini_batches: int, balance: str) -> NDArray[np.int64]:
    """Which sequence of its step lies where, by (step, mini-batch, rank, place)."""
    steps, sequences = lengths.shape
    each = sequences // (ranks * mini_batches)
    if balance == "mini_batch":
        dealt = _by_length(lengths.reshape(steps, mini_batches, ranks * each), ranks)
        return np.asarray(dealt + (np.arange(mini_batches) * ranks * each)[:, None, None])
    if balance == "none":
        dealt = np.broadcast_to(np.arange(sequences), lengths.shape)
    else:
        dealt = _by_length(lengths, ranks, falling=balance == "batch")
    return dealt.reshape(steps, ranks, mini_batches, each).transpose(0, 2, 1, 3)


def _by_length(lengths: Floats, ranks: int, *, falling: bool = False) -> NDArray[np.int64]:
    """Places of the last axis dealt to ranks by their length, shape (..., ranks, each); each rank's
    in falling order, or in that in which they came."""
    count = lengths.shape[-1]
    order = np.argsort(-lengths, axis=-1, kind="stable")
    target = _back_and_forth(count, np.array(ranks))
    by_rank = np.argsort(target, kind="stable")
    places = order[..., by_rank].reshape(*lengths.shape[:-1], ranks, count // ranks)
    return places if falling else np.sort(places, axis=-1)


def _back_and_forth(count: int, bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 1 .. n-1 n-1 .. 1 0 0 1 .. of so many places, for each number of bins n."""
    place = np.arange(count) % (2 * bins)
    return np.asarray(np.where(place < bins, place, 2 * bins - 1 - place))
