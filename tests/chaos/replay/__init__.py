"""Replays the history of a study: the controller that a resume would build is given the recorded
events again, and what it decides is held against what was kept.

    history.py              the lines of a history as steps: a controller begins, adopts, decides; the study's status changes without it
    known.py                the trials as they stood at each step
    runner_events.py        the event that caused a decision, from what was kept of it
    facts.py                decisions as plain values, kept and expected, and how they differ
    chapter.py              the decisions of one controller
    replaying.py            replay_study: all of a study
    faults.py               all that is wrong in a store
    forger.py               rewrites a study so that neither checksums nor laws find it

Inputs are taken as they are recorded: measurements, failures that the runner reported,
interruptions, the times of decisions. All else must follow: rewards, refusals, retries, which trial
is asked for and why, when it is started, who is re-measured, when the study ends, and what it
found.
"""
