"""The commands that list the values a spec can use: knobs, searchers, models, clusters, spaces,
trainers, runners."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.cli.output import JsonOption, bare_table, consoles, emit
from autotune.errors import AutotuneError

MIN_SENTENCE = 24
"""minimum width of a column of prose, characters"""


WIDE_NUMBERS = ("ffn", "vocab", "kv_heads", "experts")
"""columns that a narrow terminal omits from the table of models, in this order"""


def knobs(json: JsonOption = False) -> None:
    """List all knobs with their values and effects."""
    from autotune.spec import KNOBS

    rows = [
        {
            "name": knob.name,
            "kind": knob.kind,
            "values": [*knob.values],
            "default": knob.default,
            "label": knob.label,
            "unit": knob.unit,
            "summary": knob.doc,
        }
        for knob in KNOBS.values()
    ]
    shown = [
        {
            "name": knob.name,
            "values": ", ".join(knob.text(value) for value in knob.values)
            or f"1, 2, 3, ... {knob.unit}".rstrip(),
            "default": knob.text(knob.default),
            "label": knob.label.replace("{}", "N")
            if knob.kind in ("degree", "count", "number")
            else knob.label_of(knob.values[-1]),
            "summary": knob.doc,
        }
        for knob in KNOBS.values()
    ]
    _show(
        "knobs",
        rows,
        json,
        headings={"summary": "what it does", "label": "in labels"},
        shown=shown,
        optional=("label", "values"),
    )


def searchers(json: JsonOption = False) -> None:
    """List the searchers, which propose trials, and the packages that provide them."""
    from autotune.registry import SEARCHERS

    rows: list[dict[str, Any]] = []
    for row, plugin in _plugins(SEARCHERS):
        variants: Mapping[str, str] = getattr(plugin, "variants", {})
        rows += [
            {**row, "name": f"{row['name']}:{name}", "summary": line}
            for name, line in variants.items()
        ] or [row]
    _show_plugins("searchers", rows, json)


def models(json: JsonOption = False) -> None:
    """List the catalog models with their shapes."""
    from autotune.spec import catalog
    from autotune.spec.texts.as_text import count_cell

    rows: list[dict[str, Any]] = []
    hubs = catalog.hub_ids()
    for name in catalog.model_names():
        m = catalog.model(name)
        rows.append(
            {
                "name": name,
                "parameters": m.num_parameters,
                "layers": m.num_layers,
                "hidden": m.hidden_size,
                "heads": m.num_attention_heads,
                "kv_heads": m.num_kv_heads,
                "ffn": m.ffn_hidden_size,
                "vocab": m.vocab_size,
                "experts": m.num_experts,
                "hub": hubs.get(name, ""),
            }
        )
    _show(
        "models",
        rows,
        json,
        headings={"kv_heads": "kv"},
        shown=[{**row, "parameters": count_cell(row["parameters"])} for row in rows],
        optional=("hub", *WIDE_NUMBERS),
    )


def clusters(json: JsonOption = False) -> None:
    """List common clusters.

    A spec may also use any other size, written as GPU-NODESxGPUS (e.g. a100-80gb-16x8), or `local` for this machine.
    """
    from autotune.spec import catalog

    rows: list[dict[str, Any]] = []
    for name in catalog.cluster_names():
        c = catalog.cluster(name)
        rows.append(
            {
                "name": name,
                "gpu": c.gpu.name,
                "gpus": c.num_gpus,
                "memory_gib": round(c.gpu.memory_bytes / 2**30, 1),
                **{
                    f"{p}_tflops": _tflops(c.gpu.peak_flops_per_s.get(p))
                    for p in ("bf16", "fp16", "fp8", "nvfp4")
                },
                "intra_node_gb_per_s": c.intra_node.bytes_per_s / 1e9,
                "inter_node_gb_per_s": c.inter_node.bytes_per_s / 1e9,
                "fabric": c.inter_node.fabric or c.gpu.usual_fabric,
                "domain_gpus": c.domain_gpus,
                "power_watts": c.gpu.power_watts,
                "usd_per_hour": c.gpu.usd_per_hour,
            }
        )
    headings = {
        "gpu": "GPU",
        "gpus": "GPUs",
        "memory_gib": "memory\nGiB",
        "bf16_tflops": "bf16\nTFLOP/s",
        "fp16_tflops": "fp16\nTFLOP/s",
        "fp8_tflops": "fp8\nTFLOP/s",
        "domain_gpus": "domain\nGPUs",
        "intra_node_gb_per_s": "in node\nGB/s",
        "inter_node_gb_per_s": "between\nGB/s",
    }
    hidden = ("gpu", "nvfp4_tflops", "power_watts", "usd_per_hour")
    shown = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
    _show(
        "clusters",
        rows,
        json,
        headings=headings,
        shown=shown,
        optional=("fp8_tflops", "fabric", "domain_gpus"),
    )


def _tflops(flops_per_s: float | None) -> float | None:
    """Return TFLOP/s, rounded; None if the GPU lacks this precision."""
    if flops_per_s is None:
        return None
    return round(flops_per_s / 1e12, 1 if flops_per_s >= 1e12 else 3)


def spaces(json: JsonOption = False) -> None:
    """List the ready-made search spaces, with their knobs."""
    from autotune import assets
    from autotune.schema.reading import read_document

    rows: list[dict[str, Any]] = []
    for name, path in assets.space_files().items():
        knobs = read_document(path, what="search space")
        rows.append(
            {
                "name": name,
                "summary": knobs.pop("description", ""),
                "knobs": knobs,
                "path": str(path),
            }
        )
    shown = [
        {
            "name": row["name"],
            "summary": row["summary"],
            "knobs": ", ".join(f"{k} {_values_text(v)}" for k, v in row["knobs"].items()),
        }
        for row in rows
    ]
    _show("spaces", rows, json, shown=shown)


def _values_text(values: Any) -> str:
    """Return a knob's values in short form: `1|2|4`, or `1..64` for powers of two."""
    if isinstance(values, Mapping):
        return " ".join(
            f"{low}..{high}" if name == "powers_of_two" else f"{name} {low}..{high}"
            for name, (low, high, *_) in values.items()
        )
    return "|".join(_value(value) for value in values)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def trainers(json: JsonOption = False) -> None:
    """List the trainers that can run a config.

    For each trainer, the list shows the tested releases of the training library and the package that provides the trainer.
    """
    from autotune.registry import TRAINERS

    rows = [
        {
            **row,
            "checked_against": getattr(plugin, "checked_against", ""),
            "summary": getattr(plugin, "summary", row["summary"]),
        }
        for row, plugin in _plugins(TRAINERS)
    ]
    _show_plugins("trainers", rows, json)


def runners(json: JsonOption = False) -> None:
    """List the runners, which run trials, and the packages that provide them."""
    from autotune.registry import RUNNERS

    _show_plugins("runners", [row for row, _ in _plugins(RUNNERS)], json)


def _plugins(group: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each plug-in in a group as (row, loaded object). If it cannot be loaded, the object is
    None and the row has the reason."""
    from autotune.registry import load, registered

    for name, entry in registered(group).items():
        loaded = None
        try:
            loaded = load(group, name)
            summary = " ".join((loaded.__doc__ or "").strip().partition("\n\n")[0].split())
        except AutotuneError as error:
            summary = f"cannot be loaded: {error.message}"
        yield (
            {"name": name, "summary": summary, "package": entry.package, "version": entry.version},
            loaded,
        )


def _show_plugins(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print plug-ins as JSON or as a table, which has package and version in one column."""
    shown = [
        {
            "name": r["name"],
            "package": f"{r['package']} {r['version']}".rstrip(),
            **({"checked_against": r["checked_against"]} if "checked_against" in r else {}),
            "summary": r["summary"],
        }
        for r in rows
    ]
    _show(
        title,
        rows,
        as_json,
        shown=shown,
        optional=("checked_against",) if title == "trainers" else (),
    )


def _show(
    title: str,
    rows: list[dict[str, Any]],
    as_json: bool,
    *,
    headings: Mapping[str, str] | None = None,
    shown: list[dict[str, Any]] | None = None,
    optional: Sequence[str] = (),
) -> None:
    """Print the rows as a JSON document, or `shown` (default: the rows) as a table.

    A narrow terminal omits the `optional` columns one by one. Numbers and names are never cut;
    prose is wrapped between words.
    """
    if as_json:
        emit({title: rows})
        return
    from autotune.report.table_layout import Column, FittedTable, TableLayout
    from autotune.report.terminal import Palette, safe
    from autotune.spec.texts.as_text import UNKNOWN

    palette = Palette.of(sys.stdout)
    cells = shown or rows
    keys = list(cells[0]) if cells else []
    sentences = [key for key in keys if key in ("summary", "knobs", "values", "checked_against")]
    table = FittedTable(
        empty=bare_table,
        columns=[
            Column(
                key=key,
                heading=(headings or {}).get(key, key.replace("_", " ")),
                right=key not in ("name", "gpu", "package", "fabric") and key not in sentences,
                min_width=MIN_SENTENCE,
                cut=key not in sentences,
            )
            for key in keys
        ],
        layouts=[
            *(TableLayout(hidden=frozenset(optional[:n])) for n in range(len(optional))),
            TableLayout(
                hidden=frozenset(optional),
                shorten=tuple(key for key in sentences if key not in optional),
            ),
        ],
        ellipsis=palette.unicode,
    )
    for row in cells:
        table.add_row(*(UNKNOWN if v is None else safe(_cell(v), palette) for v in row.values()))
    consoles()[0].print(table)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
