"""Review of a launch: reads what people have, says whether it fits, how fast it should be, and
which edits make it faster. Nothing is run.

target.py    a script, a command, a configuration, a manifest or a spec, as a spec
gains.py     how much faster configs are, with intervals                                    edits.py     the changes that surely gain
lines.py     an edit as lines of somebody's files                                           dangers.py   what is wrong or dangerous
earlier.py   what was measured before                                                       completing.py     what was said beside it, and what nobody said
answer.py    the answer                                                                     measured_step.py  its step time, as given or by its log
words.py     the answer as text                                                             understood.py     the launch in one line
reviewing.py from the text to the answer
kubeflow.py  the answer to a TrainJob at its admission
"""

from autotune.reviews.answer import Edit, Review
from autotune.reviews.reviewing import review, review_texts
from autotune.reviews.words import MOST, WIDTH, lines_of

__all__ = ["MOST", "WIDTH", "Edit", "Review", "lines_of", "review", "review_texts"]
