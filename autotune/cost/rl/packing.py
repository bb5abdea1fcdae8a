"""Simulates the distribution of a step's sequences over data-parallel ranks, mini-batches and
micro-batches, from the distribution of their lengths.

    N sequences of P prompts   R ranks   M mini-batches   b = N / (R M) sequences per rank and mini-batch   C token capacity of a micro-batch   k micro-batches
    T tokens of a micro-batch   Q sum of the squared lengths of its sequences: work of attention

lengths     responses to the same prompt are correlated: ln length is the sum of a part of the prompt and a part of the response, with the shares rho and 1 - rho of the variance
ranks       'batch': sequences are distributed by length so that ranks have equally many tokens, sorted by length on each rank, and split into mini-batches of b (verl:
            `balance_batch`), so that simultaneous mini-batches of all ranks are similar. 'in_order': the same, but each rank keeps the original order (verl before 0.6), so
            that its mini-batches are still unequal. 'mini_batch': each mini-batch is distributed separately (NeMo-RL: `shard_by_batch_size`). 'none': rank r takes the r-th
            contiguous part, in which responses to the same prompt are adjacent
balancing   sequences in descending order go to ranks 1 2 .. n n .. 2 1 1 2 ..: equally many for each, with sums that differ by less than the longest. Karmarkar-Karp differencing, which verl uses,
            is more even; the difference is below 1% with at least 8 sequences each
packing     k = ceil(tokens / C) of the rank that needs most, because collectives require the same k on all ranks (verl: `rearrange_micro_batches`, NeMo-RL: equal number of bins on all ranks). Then
            the sequences are taken in descending order, k at a time, and assigned such that the longest goes to the emptiest micro-batch (Graham's LPT in rounds)
time        ranks synchronize after each micro-batch (sharded weights, experts), or after each mini-batch. The slowest of the ranks that synchronize counts, by its work T + kappa Q

Steps are drawn until there are `DRAWN` sequences, so that random error is small compared with
differences between configs; all configs use the same draws.

Trials of the trainer's phases use the same functions: `step_lengths` draws the sequences of a step,
the same for every config of a study, and `of_rank` distributes and packs them.
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
"""minimum number of sequences in a simulation, up to `MOST_STEPS` steps"""
MOST_STEPS = 32
"""maximum number of steps in a simulation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Work of one pass over a mini-batch on the slowest ranks: numbers, or columns with one value
    per row of a table (`of_rows`)."""

    micro_batches: float
    """mean number of micro-batches per mini-batch"""
    sequences: float
    """sequences per rank and mini-batch"""
    tokens: float
    """mean tokens per micro-batch, including padding, of the slowest of the ranks that
    synchronize"""
    attended: float
    """effective sequence length for attention of the same ranks: sum of squared lengths / tokens"""
    most_tokens: float
    """tokens of the largest micro-batch"""
    waiting: float
    """work of the slowest ranks divided by the mean work, minus 1: the potential gain of
    balancing"""
    padding: float
    """padding's share of all tokens, 0 to 1"""
    spread: float
    """coefficient of variation of the work between steps"""

    @classmethod
    def of_rows(cls, kinds: Sequence[Packed], of_row: NDArray[np.intp]) -> Packed:
        """Return columns from the results of several kinds of rows. `of_row`: index of each row's
        kind, shape (N,)."""
        columns: dict[str, Any] = {
            f.name: np.array([getattr(kind, f.name) for kind in kinds])[of_row] for f in fields(cls)
        }
        return cls(**columns)


def drawn_lengths(asked: PostTraining, steps: int, seed: int | Sequence[int] = 0) -> Floats:
    """Return the tokens of every sequence, shape (steps, prompts * responses); responses to the
    same prompt are adjacent."""
    random = np.random.default_rng(seed)
    shape = (steps, asked.prompts, asked.responses)
    own, shared = random.standard_normal(shape), random.standard_normal(shape[:2])
    mixed = np.sqrt(asked.same_prompt) * shared[..., None] + np.sqrt(1.0 - asked.same_prompt) * own

    def shares(values: Floats) -> Floats:
        """Return the quantiles of the values by their rank, 0 to 1, so that each quantile occurs
        once."""
        flat = values.reshape(-1)
        quantiles = np.empty(len(flat))
        quantiles[np.argsort(flat, kind="stable")] = (np.arange(len(flat)) + 0.5) / len(flat)
        return quantiles.reshape(values.shape)

    responses = asked.response_lengths.at(shares(mixed))
    prompts = asked.prompt_lengths.at(shares(random.standard_normal(shape[:2])))
    return np.maximum(responses + prompts[..., None], 1.0).reshape(steps, -1)


@lru_cache(maxsize=4)
def _drawn(asked: PostTraining, steps: int) -> Floats:
    """Return `drawn_lengths`, cached for all ways to distribute and pack the sequences."""
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
    """Simulate the pass over a mini-batch. `ranks`: data-parallel ranks; `capacity`: tokens per
    micro-batch, 0: `micro_batch` sequences each; `mini_batches`: 1 for a pass over the whole batch;
    `meets_each`: ranks synchronize after each micro-batch."""
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
    tokens_there, work_there, load_there = on_slowest
    by_step = load_there.sum(axis=(1, 2))
    batches = float(count.sum())
    return Packed(
        micro_batches=batches / count.size,
        sequences=float(each),
        tokens=float(tokens_there.sum() / batches),
        attended=float(max(work_there.sum() / max(tokens_there.sum(), 1.0), 1.0)),
        most_tokens=float(tokens.max()),
        waiting=float(by_step.mean() / load.sum(axis=(1, 3)).mean(axis=1).mean() - 1.0),
        padding=float(1.0 - real / tokens.sum()),
        spread=float(by_step.std() / by_step.mean()),
    )


def _counts(dealt: Floats, capacity: float) -> NDArray[np.int64]:
    """Return the number of micro-batches on every rank, shape (steps, mini-batches)."""
    most = np.ceil(dealt.sum(axis=-1) / capacity).max(axis=-1)
    return np.asarray(np.clip(most, 1, dealt.shape[-1]).astype(np.int64))


def _filled(falling: Floats, count: NDArray[np.int64]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return (tokens, sums of squared lengths) of micro-batches, shape (steps, mini-batches, ranks,
    maximum of `count`), and the micro-batch of each sequence. `falling`: lengths on each rank in
    descending order; `count`: micro-batches, shape (steps, mini-batches)."""
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
        for i in range(rounds):  # the longest sequence of a round goes to the emptiest micro-batch
            emptiest = places[:, i] = np.argsort(own, axis=-1, kind="stable")
            own[rank, emptiest] += by_round[:, i]
            squares[rank, emptiest] += by_round[:, i] ** 2
        own, squares = own.reshape(*ranks, bins), squares.reshape(*ranks, bins)
        tokens[where, :, :bins], work[where, :, :bins] = own, squares
        goes_to[where] = places.reshape(*ranks, rounds * bins)[..., :sequences]
    return tokens, work, goes_to


def step_lengths(asked: PostTraining, step: int, seed: int) -> Floats:
    """Return the tokens of the sequences of a trial's step. They depend only on the study's seed,
    so that all its configs train on the same lengths."""
    block, row = divmod(step, MOST_STEPS)
    return np.asarray(_block(asked, seed, block)[row])


def relative_work(asked: PostTraining, step: int, seed: int, kappa: float) -> float:
    """Return work T + kappa Q of this step divided by the mean over steps."""
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
    """Return the micro-batches of a rank in each mini-batch of a step with these lengths, as
    indices of their sequences. Parameters as in `packed`."""
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
    by_mini_batch = []
    for m, bins in enumerate(count[0]):
        own = places[0, m, rank][falling[0, m, rank]]
        by_mini_batch.append([own[goes_to[0, m, rank] == k] for k in range(bins)])
    return by_mini_batch


@lru_cache(maxsize=64)
def _dealt(asked: PostTraining, ranks: int, mini_batches: int, balance: str) -> Floats:
    """Return the lengths, shape (steps, mini-batches, ranks, b)."""
    sequences = asked.sequences
    steps = int(min(MOST_STEPS, max(1, -(-DRAWN // sequences))))
    lengths = _drawn(asked, steps)
    each = -(-sequences // (ranks * mini_batches))
    # a batch that is not divisible is filled up with repeated sequences
    missing = each * ranks * mini_batches - sequences
    if missing:
        lengths = np.take(lengths, np.arange(sequences + missing) % sequences, axis=1)
    places = _places(lengths, ranks, mini_batches, balance)
    return np.take_along_axis(lengths, places.reshape(steps, -1), axis=-1).reshape(places.shape)


def _places(lengths: Floats, ranks: int, mini_batches: int, balance: str) -> NDArray[np.int64]:
    """Return the index of the sequence within its step, shape (steps, mini-batches, ranks, b)."""
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
    """Return indices along the last axis, distributed to ranks by length, shape (..., ranks, each).
    `falling`: in descending order of length on each rank, else in the original order."""
    count = lengths.shape[-1]
    order = np.argsort(-lengths, axis=-1, kind="stable")
    target = _back_and_forth(count, np.array(ranks))
    by_rank = np.argsort(target, kind="stable")
    places = order[..., by_rank].reshape(*lengths.shape[:-1], ranks, count // ranks)
    return places if falling else np.sort(places, axis=-1)


def _back_and_forth(count: int, bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sequence 0 1 .. n-1 n-1 .. 1 0 0 1 .. of length `count`, for a number of bins
    n."""
    place = np.arange(count) % (2 * bins)
    return np.asarray(np.where(place < bins, place, 2 * bins - 1 - place))
