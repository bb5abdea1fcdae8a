"""Help pages: commands in groups, each with one sentence, and examples at the end of each command's
own page.

Commands outside all groups are listed under `MORE`, so that no command is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Tune": (
        "doctor",
        "review",
        "run",
        "diagnose",
        "init",
        "import",
        "plan",
        "estimate",
        "fit",
        "check",
        "calibrate",
        "tune",
        "recheck",
    ),
    "Look at studies and results": (
        "list",
        "status",
        "watch",
        "logs",
        "best",
        "explain",
        "compare",
        "report",
        "export",
        "note",
        "tag",
    ),
    "Service": ("serve", "submit", "pause", "resume", "stop", "cancel", "token", "mcp"),
    "Store": ("store", "delete"),
    "Catalog": ("models", "clusters", "spaces", "knobs", "trainers", "searchers", "runners"),
}
"""headings, and the commands under each in the order in which people need them"""
MORE = "More"
"""heading for commands outside all groups"""

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "doctor": ("autotune doctor",),
    "init": (
        "autotune init train.py -o study.yaml",
        "autotune init train.py --model gpt2-medium --cluster h100-sxm-1x8",
    ),
    "import": (
        "autotune import ds_config.json --from deepspeed -o study.yaml",
        "autotune import pretrain.sh --from megatron --cluster h100-sxm-4x8",
    ),
    "review": (
        "autotune review train.sh --cluster h100-sxm",
        "autotune review -- torchrun --nproc-per-node 8 train.py --batch-size 4",
        "autotune review train.sh --cluster h100-sxm --measured 2.1s --diff",
        "autotune review --kubeflow trainjob.yaml --cluster h100-sxm",
    ),
    "run": (
        "autotune run -- torchrun --nproc-per-node 8 train.py --batch-size 4",
        "autotune run --cluster h100-sxm-1x8 -- bash train.sh",
        "autotune run --diagnose -- torchrun --nproc-per-node 8 train.py",
    ),
    "recheck": (
        "autotune recheck gpt2-medium",
        "autotune recheck gpt2-medium --max-slowdown 3% --junit recheck.xml",
    ),
    "diagnose": (
        "autotune diagnose gpt2-medium",
        "autotune diagnose gpt2-medium 7 --json",
        "autotune diagnose --log run.log study.yaml",
    ),
    "plan": (
        "autotune plan study.yaml",
        "autotune plan study.yaml --gpus 64,128,256 --tokens 15T",
        "autotune plan study.yaml --clusters h100-sxm,h200-sxm",
    ),
    "estimate": ("autotune estimate study.yaml --config tp=2,micro_batch_size=4",),
    "fit": (
        "autotune fit study.yaml",
        "autotune fit study.yaml --config tp=2,micro_batch_size=4 -o fit.html",
    ),
    "check": ("autotune check study.yaml", "autotune check study.yaml --runner local"),
    "calibrate": ("autotune calibrate",),
    "tune": (
        "autotune tune laptop                 a small built-in study",
        "autotune tune study.yaml --max-trials 10",
        "autotune tune study.yaml --train-tokens 15T --json > result.json",
        "autotune tune study.yaml --on slurm --submit --option time=4h",
    ),
    "list": (
        "autotune list",
        "autotune list --observed",
        "autotune list --status running --json",
        "autotune list | cut -f1   # ids only",
    ),
    "status": (
        "autotune status gpt2-medium-1x8",
        "autotune status kfm4a2b9xq --json",
        "autotune status --in two-nodes        a study that runs as a job",
    ),
    "watch": ("autotune watch kfm4a2b9xq",),
    "logs": ("autotune logs kfm4a2b9xq", "autotune logs kfm4a2b9xq 7        why trial 7 failed"),
    "best": (
        "autotune best kfm4a2b9xq --top 5",
        "autotune best kfm4a2b9xq --pareto",
        "autotune best --model llama-8b --cluster h100-sxm-1x8",
    ),
    "explain": ("autotune explain kfm4a2b9xq", "autotune explain kfm4a2b9xq 7"),
    "compare": ("autotune compare kfm4a2b9xq p3tn8w5zjd",),
    "report": (
        "autotune report kfm4a2b9xq -o report.html",
        "autotune report kfm4a2b9xq --format markdown",
    ),
    "export": (
        "autotune export kfm4a2b9xq --to torchtitan -o launch/",
        "autotune export kfm4a2b9xq --to megatron --on slurm --option partition=gpu",
    ),
    "note": ('autotune note kfm4a2b9xq "new driver since Monday"',),
    "tag": ("autotune tag kfm4a2b9xq baseline",),
    "delete": ("autotune delete kfm4a2b9xq",),
    "serve": (
        "autotune serve",
        "autotune serve --runner local         without Ray",
        "autotune serve --host 0.0.0.0 --allowed-host tuner.example.org",
    ),
    "submit": (
        "autotune submit study.yaml --wait",
        "autotune submit study.yaml --url http://127.0.0.1:8600",
    ),
    "mcp": ("autotune mcp", "autotune mcp --url http://127.0.0.1:8600"),
    "pause": ("autotune pause kfm4a2b9xq",),
    "resume": ("autotune resume kfm4a2b9xq",),
    "stop": ("autotune stop kfm4a2b9xq",),
    "cancel": ("autotune cancel kfm4a2b9xq",),
    "token create": ("autotune token create --owner ann --scope submit --expires 90d",),
    "token list": ("autotune token list",),
    "token revoke": ("autotune token revoke 3",),
    "token audit": ("autotune token audit",),
    "store check": ("autotune store check", "autotune store check --store results.db --json"),
    "store backup": ("autotune store backup results-backup.db",),
    "store restore": ("autotune store restore results-backup.db",),
    "store migrate": ("autotune store migrate --dry-run",),
    "store export": (
        "autotune store export tables/",
        "autotune store export tables/ --format parquet",
    ),
    "store vacuum": ("autotune store vacuum",),
    "models": ("autotune models",),
    "clusters": ("autotune clusters",),
    "spaces": ("autotune spaces",),
    "knobs": ("autotune knobs", "autotune knobs --json"),
    "trainers": ("autotune trainers",),
    "searchers": ("autotune searchers",),
    "runners": ("autotune runners",),
}
"""example command lines at the end of a command's page, some with an explanation; by command
path"""


class GroupedCommands(TyperGroup):
    """A group whose help page lists commands under headings and prints each sentence whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections with commands."""
        ungrouped = {
            name: command
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name))
        }
        longest = max(map(len, ungrouped))
        for heading, names in GROUPS.items() if ctx.parent is None else ():
            _write(
                formatter,
                heading,
                {name: ungrouped.pop(name) for name in names if name in ungrouped},
                longest,
            )
        _write(formatter, MORE if ctx.parent is None else "Commands", ungrouped, longest)


def _write(formatter: Any, heading: str, commands: Mapping[str, Any], longest: int) -> None:
    rows = [(name.ljust(longest), _first_line(command.help)) for name, command in commands.items()]
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def add_examples(app: typer.Typer) -> None:
    """Add the examples to the help pages of the application's commands."""
    for path, command in commands_of(app):
        if lines := EXAMPLES.get(path):
            command.epilog = "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def commands_of(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the registered commands with their paths, such as `plan` and `store check`."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__.strip("_") if command.callback else "")
        yield f"{prefix}{name}", command
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            yield from commands_of(group.typer_instance, f"{prefix}{group.name} ")
