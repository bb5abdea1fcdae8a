"""Reference pages, as Markdown made from the code: commands, study spec, knobs, catalog, REST.

Sources: typer's commands, the JSON schema of the study spec with the docstrings of the values that
it becomes, the declarations of the knobs, the listing commands' own JSON, and the service's OpenAPI
document. The Python page is in `python_page.py`.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import griffe
from json_shapes import cell, kind_of, shape_table, table
from python_page import python_page


def pages() -> dict[str, str]:
    """Every page of the reference: its path in the site, and its text."""
    made: dict[str, Callable[[], str]] = {
        "commands": commands,
        "spec": spec,
        "knobs": knobs,
        "catalog": catalog,
        "rest": rest,
        "python": python_page,
    }
    return {f"reference/{name}.md": page() for name, page in made.items()}


def commands() -> str:
    """The commands with their help, as the terminal shows it."""
    import click
    import typer

    from autotune.cli import application

    group = typer.main.get_command(application())
    lines = [
        "# Commands",
        "",
        "Generated from the commands' help. Every command takes `--json`: it then prints one JSON document on stdout, and everything else on stderr.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | failed, or no configuration is feasible |",
        "| 2 | the input is wrong |",
        "| 3 | a store or service is unavailable: it cannot be reached or written |",
        "| 130 | interrupted; measurements are kept |",
        "",
    ]

    def add(command: Any, parent: Any, name: str, level: int) -> None:
        context = type(parent)(
            command, info_name=name, parent=parent, terminal_width=100, max_content_width=100
        )
        text = command.get_help(context)
        lines.extend(
            [f"{'#' * level} {context.command_path}", "", "```text", text.strip(), "```", ""]
        )
        for inner in sorted(getattr(command, "commands", {})):
            add(command.commands[inner], context, inner, level + 1)

    root = (
        click.Context(group, info_name="autotune")
        if isinstance(group, click.Command)
        else group.context_class(group, info_name="autotune")
    )
    for name in sorted(group.commands):
        add(group.commands[name], root, name, 2)
    return "\n".join(lines)


_HOMES = {
    "StudyDocument": ("Study", "The whole document."),
    "WorkloadDocument": ("Workload", ""),
    "ModelDocument": ("ModelSpec", ""),
    "ClusterDocument": ("ClusterSpec", ""),
    "GpuDocument": ("GpuSpec", ""),
    "LinkDocument": ("LinkSpec", ""),
    "SpaceDocument": ("SpaceSpec", ""),
    "ObjectiveDocument": ("Objective", ""),
    "BudgetDocument": ("Budget", ""),
    "MeasureDocument": ("MeasureSpec", ""),
}
"""The value that each part of a spec becomes: its field docs say what the schema leaves out."""
_KEYS = {
    "WorkloadDocument": "workload",
    "ModelDocument": "model",
    "ClusterDocument": "cluster",
    "TargetDocument": "target",
    "GpuDocument": "cluster.gpu",
    "LinkDocument": "cluster.intra_node, cluster.inter_node",
    "SpaceDocument": "space",
    "ValueRule": "space: values by a rule",
    "ObjectiveDocument": "objective",
    "BudgetDocument": "budget",
    "MeasureDocument": "measure",
    "KindDocument": "trainer, runner",
}


def spec() -> str:
    """The study spec, key by key."""
    from autotune.schema import json_schema

    schema = json_schema()
    definitions = {"StudyDocument": schema, **schema["$defs"]}
    lines = [
        "# Study spec",
        "",
        "A study spec is a YAML or JSON file. Unknown keys are errors, and the message suggests the nearest known key. This page is generated from",
        "the spec's JSON schema. `autotune.schema.json_schema()` returns the schema, for editors that complete YAML.",
        "",
        "Bundled spec files are in `search_spaces/studies/`. The pages of the [trainers](../trainers/index.md) have small ones.",
        "",
    ]
    for name in [
        "StudyDocument",
        *(n for n in _KEYS if n in definitions),
        *sorted(set(definitions) - {"StudyDocument", *_KEYS}),
    ]:
        shape = definitions[name]
        title = (
            "Top level"
            if name == "StudyDocument"
            else f"`{_KEYS[name]}`"
            if name in _KEYS
            else name
        )
        home = _HOMES.get(name, ("", ""))[0]
        lines += [
            f"## {title}",
            "",
            _one_line(shape.get("description", "")),
            "",
            shape_table(shape, _field_docs(home)),
            "",
        ]
    return "\n".join(lines)


def knobs() -> str:
    """The knobs of every study."""
    from autotune.spec.config import KNOBS

    rows = []
    for knob in KNOBS.values():
        values = ", ".join(f"`{knob.text(value)}`" for value in knob.values) or "1, 2, 3, ..."
        shown = knob.label_of(
            knob.values[-1]
            if knob.kind != "flag" and knob.values
            else 8
            if not knob.values
            else True
        )
        rows.append(
            [
                f"`{knob.name}`",
                knob.kind,
                values,
                f"`{knob.text(knob.default)}`",
                f"`{shown}`",
                knob.unit,
                knob.doc,
            ]
        )
    return "\n".join(
        [
            "# Knobs",
            "",
            "A knob is one tunable value of a configuration. This table is generated from `autotune/spec/config.py`.",
            "Write a config as `tp=2,pp=1,dp=4,precision=bf16` or as its label, such as `tp2 pp1 dp4 bf16`. Every command accepts both.",
            "",
            table(["knob", "kind", "values", "default", "in a label", "unit", "meaning"], rows),
            "",
            "Every config must satisfy two rules:",
            "",
            "- `global_batch_size = micro_batch_size * accumulation_steps * dp`",
            "- `world size = tp * pp * dp * cp`; `ep` divides `dp * cp`",
            "",
            "Further rules depend on model, cluster and trainer (`autotune/space/mesh_laws.py`, `autotune/space/step_laws.py`). `autotune estimate SPEC --config ...` names the rule that",
            "an invalid config violates, and `autotune plan SPEC --verbose` counts what each rule excludes.",
            "",
        ]
    )


def catalog() -> str:
    """The names that a spec may use: searchers, trainers, runners, models, clusters, spaces."""
    lines = [
        "# Catalog",
        "",
        "Names that a spec may use. Each table is the output of the command with that name.",
        "",
    ]
    for command in ("searchers", "trainers", "runners", "models", "clusters", "spaces"):
        document = _listed(command)
        (rows,) = (value for value in document.values() if isinstance(value, list))
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines += [f"## {command.capitalize()}", ""]
        if command == "clusters":
            lines += [
                "A spec may name any number of a listed GPU: `GPU-NODESxGPUS`, such as `h100-sxm-16x8`. `local` is this machine.",
                "",
            ]
        if command == "spaces":
            rows = [{**row, "knobs": _knob_list(row.get("knobs", {}))} for row in rows]
        body = [
            [f"`{row[c]}`" if c == "name" else cell(row.get(c, "")) for c in columns]
            for row in rows
        ]
        lines += [table([column.replace("_", " ") for column in columns], body), ""]
    lines += ["[Extending](../extending.md) explains how to add to each table.", ""]
    return "\n".join(lines)


def rest() -> str:
    """The REST interface, from the service's OpenAPI document."""
    from autotune.service.http.app import create_app
    from autotune.service.options import ServiceOptions
    from autotune.store.in_memory import MemoryStore

    document = create_app(MemoryStore(), ServiceOptions()).openapi()
    lines = [
        "# REST",
        "",
        "Generated from the service's OpenAPI document. A running service has it at `/openapi.json`.",
        "",
        document["info"]["description"].strip(),
        "",
        "If the service requires tokens, send the header `Authorization: Bearer TOKEN` ([tokens](../operations.md#tokens)).",
        "",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += [f"## {method.upper()} {path}", "", operation.get("description", ""), ""]
            given = [
                [
                    f"`{p['name']}`",
                    p["in"],
                    kind_of(p["schema"]),
                    "yes" if p.get("required") else "",
                    p.get("description", ""),
                ]
                for p in operation.get("parameters", [])
            ]
            if given:
                lines += [table(["parameter", "in", "type", "required", "meaning"], given), ""]
            body = operation.get("requestBody", {}).get("content", {})
            if body:
                lines += ["Body: " + ", ".join(f"`{media}`" for media in body) + ".", ""]
            answers = [
                [
                    status,
                    ", ".join(f"`{media}`" for media in answer.get("content", {})),
                    _answer(answer),
                    answer["description"],
                ]
                for status, answer in operation["responses"].items()
            ]
            lines += [table(["status", "media type", "document", "meaning"], answers), ""]
    lines += ["## Documents", ""]
    for name, shape in sorted(document["components"]["schemas"].items()):
        if name not in {*_HOMES, *_KEYS}:
            lines += [
                f"### {name}",
                "",
                _one_line(shape.get("description", "")),
                "",
                shape_table(shape, {}),
                "",
            ]
    return "\n".join(lines)


def _answer(answer: Mapping[str, Any]) -> str:
    kinds = [
        kind_of(content["schema"])
        for content in answer.get("content", {}).values()
        if "schema" in content
    ]
    return ", ".join(dict.fromkeys(kinds))


def _listed(command: str) -> dict[str, Any]:
    """What `autotune COMMAND --json` prints."""
    from autotune.cli import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run([command, "--json"])
    if code != 0:
        raise RuntimeError(f"autotune {command} --json must exit with 0, but exits with {code}")
    return json.loads(out.getvalue())


def _knob_list(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {_rule(rule)}" for name, rule in values.items())


def _rule(rule: Any) -> str:
    if isinstance(rule, Mapping):
        (name, (low, high, *_)) = next(iter(rule.items()))
        return f"{low} to {high}" + (", powers of two" if name == "powers_of_two" else "")
    listed: Iterable[Any] = rule if isinstance(rule, list) else [rule]
    return ", ".join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in listed
    )


def _field_docs(name: str) -> dict[str, str]:
    """The line of doc under each field of a value of `autotune.spec`."""
    if not name:
        return {}
    home = _values()[name]
    return {
        member: _one_line(attribute.docstring.value)
        for member, attribute in home.members.items()
        if attribute.is_attribute and attribute.docstring
    }


@cache
def _values() -> Any:
    return griffe.load("autotune.spec", resolve_aliases=True)


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(":")
