"""Replays the history of a study: the controller that a resume would build is given the recorded events again, and what it decides is held against what was kept.

    history.py              the lines of a history as steps: a controller begins, adopts, decides; the study's status changes without it
    known.py                the trials as they stood at each step
    runner_events.py        the event that caused a decision, from what was kept of it
    facts.py                decisions as plain values, kept and expected, and how they differ
    recorded_searcher.py    a searcher that asks for what is recorded, where its choices cannot be made again
    chapter.py              the decisions of one controller
    replaying.py            replay_study: all of a study

Whoever takes a study over begins from what is kept. So does the replay of each controller: from its own line in the history (`autotune.study.beginning`), which
releases before it did not write.

Inputs are taken as they are recorded: measurements, failures that the runner reported, interruptions, the times of decisions. All else must follow: rewards,
refusals, retries, which trial is asked for and why, when it is started, who is measured again, when the study ends, and what it found.
"""

from autotune.study.replay.replaying import replay_study

__all__ = ["replay_study"]
