"""A target's ranking as text, for the terminal, the report and the study's page: sentences, and a
table of its configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.report.terminal import format_duration
from autotune.spec import ParallelConfig, config_label
from autotune.spec.runs.trial import trial_numbers
from autotune.spec.texts.as_text import count_cell, duration_cell

CONSTANT_TEXTS: Mapping[str, str] = {
    "intra_efficiency": "the links inside a node",
    "latency_factor": "start-up time of collectives",
    "inter_efficiency": "the network between nodes",
    "rails": "the network between nodes",
    "inter_decay": "the network between nodes",
    "hop_s": "the network between nodes",
    "tensor_hop_s": "tensor-parallel groups across nodes",
    "data_overlap": "overlap of gradient exchange with computation",
    "dispatch_efficiency": "the exchange of tokens between experts",
    "dispatch_overlap": "overlap of the token exchange between experts",
    "send_host_s": "pipeline overhead in addition to the bubble",
    "pipelined_tensor_host_s": "pipeline overhead in addition to the bubble",
    "straggler": "the slowest of many nodes",
}
"""description of each constant of the cost model that a proxy may be unable to measure"""
HEADS = ("rank", "config", "tokens/s", "step", "90% interval", "OOM risk", "proxy")
PROXY_HEADS = ("for rank", "proxy", "layers", "sequences", "predicted step")
TEXT_COLUMNS = (1, 4)
"""indices of the columns of `target_rows` with words"""


def target_sentences(target: Mapping[str, Any]) -> list[str]:
    """Return sentences on what is known and unknown about the target, the most important first.
    `target`: the document of `autotune.results.target`."""
    num_proxies = f"{target['proxies']} {'proxy' if target['proxies'] == 1 else 'proxies'}"
    sizes = f"{target['num_gpus']:,} GPUs, {target['times']:g} times as many as {target['at_hand']}"
    sentences = [
        f"the configs for target {target['cluster']} ({sizes}) are ranked by the cost model and {num_proxies} on {target['at_hand']}"
    ]
    sentences.append(statement_sentence(target))
    sentences.append(
        f"one trial on the target is expected to improve the speed by {target['gain_of_a_real_trial']:.1%}"
    )
    if target["configs"] and (stalls := target["configs"][0].get("stall_probability", 0.0)):
        slow = format_duration(target["configs"][0]["stalled_step_time_s"])
        sentences.append(
            f"in the first config, transfers between nodes stall with a probability of {stalls:.0%}; a stalled step takes {slow}"
        )
    if unknown := blind_spots(name for row in target["configs"] for name in row["blind"] or ()):
        sentences.append(f"proxies cannot show: {', '.join(unknown)}")
    for reason, count in target["without_proxy"].items():
        sentences.append(f"{count:,} of the promising configs have no proxy here: {reason}")
    return sentences


def statement_sentence(target: Mapping[str, Any]) -> str:
    """Return the sentence on how close the first config is to the best one, or why there is no
    bound."""
    statement = target["statement"]
    if statement is None:
        return f"there is no useful bound on how far the first config is from the best one: {target['no_statement']}"
    return (
        f"the first config is within {statement['within']:.0%} of the best one with {statement['confidence']:.0%} confidence, "
        f"based on {statement['replays']:,} replays of published sweeps"
    )


def blind_spots(names: Iterable[str]) -> list[str]:
    """Return descriptions of these constants, without duplicates."""
    return list(dict.fromkeys(CONSTANT_TEXTS.get(name, name) for name in names))


def _proxies_text(row: Mapping[str, Any]) -> str:
    if row["no_proxy"]:
        return "none here"
    return trial_numbers(row["proxies"]) if row["proxies"] else "not run"


def target_rows(target: Mapping[str, Any]) -> list[list[str]]:
    """Return the configs as rows under `HEADS`."""
    return [
        [
            str(row["rank"]),
            config_label(ParallelConfig.from_dict(row["config"])),
            count_cell(row["tokens_per_s"]),
            duration_cell(row["step_time_s"]),
            f"{duration_cell(row['step_time_low_s'])} to {duration_cell(row['step_time_high_s'])}",
            f"{row['oom_probability']:.0%}",
            _proxies_text(row),
        ]
        for row in target["configs"]
    ]


def proxy_rows(proxies: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return planned proxies as rows under `PROXY_HEADS`, each once, then the configs without a
    proxy, with the reason."""
    rows = []
    for row in proxies:
        proxy = row["proxy"]
        if proxy is not None and row["shared_with"] is None:
            ranks = [
                str(r["rank"]) for r in proxies if r is row or r.get("shared_with") == row["rank"]
            ]
            label = config_label(ParallelConfig.from_dict(proxy["config"]))
            sizes = str(proxy["num_layers"]), str(proxy["global_batch_size"])
            rows.append([", ".join(ranks), label, *sizes, duration_cell(proxy["step_time_s"])])
    rows += [
        [str(row["rank"]), f"none: {row['reason']}", "", "", ""]
        for row in proxies
        if row["proxy"] is None
    ]
    return rows
