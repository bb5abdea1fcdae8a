"""Which rank is blamed when a gang hangs: the one that has not come to where the others wait."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autotune_workers.gang.members import Member, culprit, waits

COMPUTES = '  File "/home/me/model.py", line 7, in forward\n    time.sleep(3600)'
WAITS = (
    '  File "/lib/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n    work.wait()'
)


def member(stack: str = "", micro_batch: int = 0, **collectives: int) -> Member:
    return Member(
        heard_s=10.0,
        micro_batch=micro_batch,
        collectives=collectives,
        stack=(stack,) if stack else (),
    )


def blamed(*members: Member, now_s: float = 11.0) -> int:
    found = culprit(members, now_s, silent_s=5.0)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("asleep", [0, 1, 2])
def test_the_rank_that_has_begun_fewer_collectives_than_its_group_is_blamed(asleep: int) -> None:
    assert blamed(*(member(world=7 if rank == asleep else 8) for rank in range(3))) == asleep


def test_of_ranks_that_wait_for_one_another_the_one_that_waits_for_nobody_is_blamed() -> None:
    """Rank 3 sleeps: rank 2 waits for it in their tensor-parallel group, rank 1 in their
    data-parallel group, and rank 0 for rank 2."""
    ranks: list[Mapping[str, int]] = [
        {"tp_a": 4, "dp_a": 3},
        {"tp_a": 4, "dp_b": 3},
        {"tp_b": 4, "dp_a": 2},
        {"tp_b": 3, "dp_b": 2},
    ]
    assert blamed(*(member(**counts) for counts in ranks)) == 3


def test_between_two_that_are_awaited_the_one_that_does_not_wait_itself_is_blamed() -> None:
    """A pipeline of two stages, twice: rank 1 sleeps in its stage, rank 0 waits for its gradients,
    ranks 2 and 3 have come to the sum of gradients."""
    ranks = [
        member(WAITS, dp_a=1),
        member(COMPUTES, dp_b=1),
        member(WAITS, dp_a=2),
        member(WAITS, dp_b=2),
    ]
    assert blamed(*ranks) == 1


def test_without_counts_the_rank_that_computes_while_others_wait_is_blamed() -> None:
    """Frames of torch.distributed further out say nothing: sharded modules and pipelines run the
    model's forward pass below them."""
    sharded = '  File "/lib/torch/distributed/fsdp/_fully_shard/_fsdp_state.py", line 3, in _pre_forward\n    x = f()'
    asleep = Member(heard_s=10.0, stack=(sharded, COMPUTES))
    assert blamed(member(WAITS), asleep) == 1


def test_without_any_trace_the_rank_with_the_fewest_micro_batches_is_blamed() -> None:
    assert blamed(member(micro_batch=5), member(micro_batch=4)) == 1


def test_a_rank_that_sends_no_heartbeat_is_blamed_before_all_others() -> None:
    frozen = Member(heard_s=2.0, collectives={"world": 9})
    assert blamed(member(world=3), frozen) == 1


@pytest.mark.parametrize(
    "line", ["torch.cuda.synchronize(device)", "return loss.item()", "work.wait()"]
)
def test_waiting_for_the_device_is_waiting(line: str) -> None:
    assert waits("/home/me/train.py", line)
    assert not waits("/home/me/train.py", "x = self.layer(x)")
