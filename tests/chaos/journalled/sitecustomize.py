"""Python imports this module at start where it is on the path: in the fork servers of the arena's
supervisors, whose children then keep journals."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.controller import keep_journals

keep_journals(Path(os.environ["CHAOS_FOLDER"]))
