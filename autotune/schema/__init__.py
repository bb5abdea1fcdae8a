"""The study spec: one schema for YAML, command line and REST, parsed into frozen values.

reading.py           file or standard input -> plain document, within limits; messages for invalid YAML
files.py             the files and the code that a spec refers to
source_text.py       the text that a spec was read from, and the lines of its fields
document.py          base class and value types of all documents
spec_models.py       pydantic models of the keys of a spec; JSON schema
model_documents.py   the forms of `model`
rl_documents.py      `rl`, `rollout` and `workload.lengths`
space_models.py      the search space and its knob values
clusters.py          the clusters of a spec
unknown_names.py     all unknown names of a spec in one error
parsing.py           document -> Study
"""

from autotune.schema.files import folder_of, read_spec
from autotune.schema.parsing import json_schema, parse_space, parse_study
from autotune.schema.source_text import ReadDocument, places_in
from autotune.schema.spec_models import StudyDocument

__all__ = [
    "ReadDocument",
    "StudyDocument",
    "folder_of",
    "json_schema",
    "parse_space",
    "parse_study",
    "places_in",
    "read_spec",
]
