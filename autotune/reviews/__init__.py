"""Reviews a launch: reads the user's files, and predicts whether it fits, how fast it should be, and
which edits make it faster. Nothing is run.

target.py    reads a script, a command, a configuration, a manifest or a spec              completing.py     adds the user's values; what is missing
gains.py     gains of configs over the launch, with intervals                              edits.py          changes that surely gain
lines.py     an edit as lines of the user's files                                          dangers.py        warnings
earlier.py   earlier measurements                                                          measured_step.py  the measured step time
answer.py    the answer                                                                    understood.py     the launch in one line
words.py     the answer as text                                                            said_where.py     lines that an error message refers to
new_keys.py  adds missing keys to settings files                                           reviewing.py      the review from text to answer
kubeflow.py  the answer to a TrainJob at its admission
"""

from autotune.reviews.answer import Edit, Review
from autotune.reviews.reviewing import review, review_texts
from autotune.reviews.words import MOST, WIDTH, lines_of

__all__ = ["MOST", "WIDTH", "Edit", "Review", "lines_of", "review", "review_texts"]
