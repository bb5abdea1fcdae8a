"""Rendering of the templates in `dashboards/web`, with their filters, which escape all text from
studies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from autotune import assets
from autotune.report.notes import infeasible_line
from autotune.results.without_baseline import why_unmeasured
from autotune.service.options import LOOPBACK
from autotune.settings import user_name
from autotune.spec import ParallelConfig, Trial, config_changes, config_label
from autotune.spec.config import sentence
from autotune.spec.runs.trial import trial_numbers
from autotune.spec.texts.as_text import (
    bytes_cell,
    count_cell,
    duration_cell,
    format_mfu,
    format_span,
    format_speedup,
)

if TYPE_CHECKING:
    from jinja2 import Environment


PAGES = (
    ("/studies", "Studies"),
    ("/plan", "Plan"),
    ("/best", "Best configs"),
    ("/compare", "Compare"),
    ("/submit", "New study"),
)
"""(address, name) of the links in the header; the last is only for callers who may submit"""


def render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return the page made from a template."""
    defaults: dict[str, Any] = {
        "caller": None,
        "refresh": 0,
        "scripted": False,
        "events_url": "",
        "said": "",
    }
    return as_html(environment().get_template(template).render(defaults | values), status=status)


def as_html(
    text: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> HTMLResponse:
    """Return an HTML response. `?` replaces lone surrogates, which logs of programs can contain."""
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=headers)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates, with filters and global values."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(assets.dashboards() / "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "count": count_cell,
        "thousands": "{:,}".format,
        "bytes": bytes_cell,
        "duration": duration_cell,
        "span": format_span,
        "mfu": format_mfu,
        "speedup": format_speedup,
        "infeasible": infeasible_line,
        "trials": trial_numbers,
        "config": lambda config: config_label(ParallelConfig.from_dict(config)),
        "changes": _changes,
        "why_unmeasured": lambda trial: why_unmeasured(Trial.from_dict(trial)),
        "label": config_label,
        "sentence": _sentence,
        "moment": lambda text: str(text or "")[:19].replace("T", " "),
    }
    templates.globals |= {
        "style_mark": _version_of_file("style.css"),
        "figures_mark": _version_of_file("figures.css"),
        "script_mark": _version_of_file("live.js"),
        "submit_mark": _version_of_file("submit.js"),
        "loopback": LOOPBACK,
        "user": user_name(),
        "pages": PAGES,
    }
    return templates


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return config_changes(
        ParallelConfig.from_dict(before), ParallelConfig.from_dict(after)
    ).replace("->", "→")


def _sentence(text: str) -> Markup:
    """Return the text as a sentence, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(sentence(text)))))


_CODE = re.compile("`([^`]+)`")


def _version_of_file(name: str) -> str:
    """Return a hash of a file, which its URL contains, so that browsers fetch a changed file
    again."""
    return hashlib.sha256(assets.web_file(name).encode()).hexdigest()[:12]
