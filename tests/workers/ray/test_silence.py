"""When an actor that gives no sign of life counts as lost. The clock is given, or stands still
while nobody looks."""

from __future__ import annotations

from autotune_workers.ray.actor_handle import ListeningClock, Silence


def test_an_actor_that_was_never_heard_is_still_being_started() -> None:
    assert not Silence(15.0).lasts_too_long(1000.0)


def test_an_actor_is_lost_so_long_after_its_last_sign_of_life() -> None:
    silence = Silence(15.0)
    silence.end(100.0)
    assert not silence.lasts_too_long(114.9)
    silence.end(114.0)
    assert not silence.lasts_too_long(128.9)
    assert silence.lasts_too_long(129.0)
    assert (
        silence.reason("10.0.0.7")
        == "node 10.0.0.7 was silent for 15 s, so the node is down, frozen or cut off"
    )


def test_an_owner_that_did_not_listen_takes_nobody_for_lost() -> None:
    now_s = [50.0]
    clock = ListeningClock(lambda: now_s[0])
    silence = Silence(15.0)
    silence.end(clock.look())
    now_s[0] += 3600.0
    assert not silence.lasts_too_long(clock.look())
    for _ in range(28):
        now_s[0] += 0.5
        is_lost = silence.lasts_too_long(clock.look())
    assert is_lost
