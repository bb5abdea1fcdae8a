"""The study spec, one schema for YAML, command line and REST, turned into frozen values here.

reading.py      file or standard input -> plain document, within limits, and what is wrong with a text that is no YAML
files.py          the files and the code that a spec points to
document.py     types that all documents share                               space_models.py   values of knobs, the space's document
model_documents.py  the shapes of `model`
source_text.py  the text that a spec was read from, and places in it
spec_models.py  what keys a spec has: pydantic models, JSON schema           parsing.py        document -> Study; names looked up, rules written out
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
