"""What there is: searchers, models, GPUs and clusters, spaces, trainers, runners."""

from __future__ import annotations

from typing import Any

import typer

from autotune.cli.output import JsonOption, consoles, emit


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (searchers, models, clusters, spaces, trainers, runners):
        app.command()(command)


def searchers(json: JsonOption = False) -> None:
    """Lists what can propose trials."""
    from importlib import import_module

    from autotune.search import searcher_names

    rows = []
    for name in searcher_names():
        stem, _, sampler = name.partition(":")
        home = import_module(f"autotune.search.{stem}").__doc__ or ""
        summary = f"Optuna's {sampler} sampler over the enumerated list" if sampler else home.strip().splitlines()[0]
        rows.append({"name": name, "summary": summary})
    _show("searchers", rows, json)


def models(json: JsonOption = False) -> None:
    """Lists the models of the catalog with their shapes."""
    from autotune.spec import catalog

    rows: list[dict[str, Any]] = []
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
            }
        )
    _show("models", rows, json)


def clusters(json: JsonOption = False) -> None:
    """Lists common clusters; any GPU-NODESxGPUS of a listed GPU may be named, and `local` is this machine."""
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
                "bf16_tflops": round(c.gpu.peak_flops_per_s.get("bf16", 0.0) / 1e12, 1),
                "intra_node_gb_per_s": c.intra_node.bytes_per_s / 1e9,
                "inter_node_gb_per_s": c.inter_node.bytes_per_s / 1e9,
            }
        )
    _show("clusters", rows, json)


def spaces(json: JsonOption = False) -> None:
    """Lists the search spaces that ship, with their knobs."""
    from autotune import assets

    rows = [{"name": name, "path": str(path)} for name, path in assets.space_files().items()]
    _show("spaces", rows, json)


def trainers(json: JsonOption = False) -> None:
    """Lists the trainers that a configuration can be handed to."""
    from autotune.trainers import trainer, trainer_names

    _show("trainers", [{"name": name, "summary": trainer(name).summary} for name in trainer_names()], json)


def runners(json: JsonOption = False) -> None:
    """Lists what can run trials."""
    from autotune.registry import runner_names

    _show("runners", [{"name": name} for name in runner_names()], json)


def _show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        emit({title: rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in rows[0] if rows else ():
        numeric = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *(f"{v:,}" if isinstance(v, int | float) and not isinstance(v, bool) else str(v) for v in row.values())
        )
    consoles()[0].print(table)
