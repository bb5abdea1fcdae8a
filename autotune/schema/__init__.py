"""The study spec, one schema for YAML, command line and REST, turned into frozen values here.

reading.py     file, standard input -> plain document, within limits
documents.py   what keys there are: pydantic models, JSON schema
study.py       document -> Study; names looked up, rules written out
"""

from autotune.schema.files import read_spec
from autotune.schema.parsing import json_schema, parse_space, parse_study
from autotune.schema.spec_models import StudyDocument

__all__ = ["StudyDocument", "json_schema", "parse_space", "parse_study", "read_spec"]
