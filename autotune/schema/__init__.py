"""The study spec, one schema for YAML, command line and REST, turned into frozen values here.

reading.py      file or standard input -> plain document, within limits      files.py          the files that a spec points to
document.py     types that all documents share                               space_models.py   values of knobs, the space's document
spec_models.py  what keys a spec has: pydantic models, JSON schema           parsing.py        document -> Study; names looked up, rules written out
"""

from autotune.schema.files import read_spec
from autotune.schema.parsing import json_schema, parse_space, parse_study
from autotune.schema.spec_models import StudyDocument

__all__ = ["StudyDocument", "json_schema", "parse_space", "parse_study", "read_spec"]
