"""`autotune import`: a spec whose baseline is the current configuration of a trainer's program.

The draft keeps the settings that are neither knobs nor options, except those that a launch writes
anyway: the configuration is exported and read again, and settings that come back equal are left
out. So a later export has every key of the file. Notes name what an export adds or changes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, CatalogError, SpecError
from autotune.onboarding.draft import (
    Draft,
    Entry,
    baseline_text,
    file_name,
    model_named,
    named_cluster,
    stated,
    time_limits,
)
from autotune.onboarding.present_post_training import (
    asked_of_post_training,
    post_training_entries,
    post_training_space,
    present_post_training,
)
from autotune.schema.files import is_model_file, read_model
from autotune.space import complete, why_not
from autotune.spec import (
    KNOBS,
    ClusterSpec,
    ModelSpec,
    ParallelConfig,
    Workload,
    catalog,
    number_of,
)
from autotune.trainers import Trainer, trainer
from autotune.trainers.base.effective import effective
from autotune.trainers.base.own_program import CWD
from autotune.trainers.documents.shell_folders import OF_SCRIPT
from autotune.trainers.present_configuration import (
    SETTINGS,
    PresentConfiguration,
    Reading,
    batch_of,
    dotted,
    flat,
    split_by_path,
    without_equal,
)

STAND_IN_MODEL = "nano-gpt"
"""placeholder for a model that the configuration does not give"""
STAND_IN_VOCAB = 32000
"""placeholder for the vocabulary size"""
STAND_IN_SEQ_LEN = 2048
"""placeholder for the tokens per sequence"""
STAND_IN_CLUSTER = "h100-sxm"
"""GPU type of the launch that is only written to be read again"""
NODE = 8
"""GPUs per node, assumed if only the number of ranks is known"""
OF_SHELL = re.compile(r"\$\(|`|\$[@*\d]")
"""shell text that could not be resolved: a command's output, or a script's arguments"""
OF_THE_RUN = ("steps", "master_addr", "master_port", "seed")
"""options that a study sets for each run"""

WHAT_MODEL_IS = "a catalog name (`autotune models`), the path of a config.json, or the shape"
NOT_VALID = "the current configuration is not the baseline, because it is not valid: "
"""beginning of the note that names the rule that the configuration violates"""


def import_draft(
    present: PresentConfiguration,
    name: str,
    path: Path,
    *,
    model: str | None = None,
    cluster: str | None = None,
    folder: Path,
) -> Draft:
    """The draft for the trainer `name`. `path`: the file or folder that was read; `folder`: the
    folder of the spec, which its paths are relative to.

    Raises `SpecError` if the files are not the trainer's, and `CatalogError` for an unknown
    trainer, model or cluster.
    """
    subject = trainer(name)
    reading = _read(subject, present, path, cluster)
    fill_in: list[str] = []
    reading, uncomputed = _in_folder(reading, str(path.resolve().parent))
    notes = [*reading.remarks, *uncomputed]
    found_model = _model(reading, path, model, folder)
    if found_model is not None and not found_model[1].num_experts:
        reading = replace(
            reading,
            rl={name: value for name, value in reading.rl.items() if name != "whole_experts"},
        )
    lacks_vocab = (
        found_model is not None
        and model is None
        and "vocab_size" not in reading.model
        and not reading.model_file
    )
    if found_model is None or lacks_vocab:
        fill_in.append("model")
    known_model, about_model = (
        (found_model[1], found_model[2]) if found_model else (None, f"fill in: {WHAT_MODEL_IS}")
    )
    cluster = cluster or _known_cluster(reading.cluster)
    known_cluster = named_cluster(cluster)
    ranks = _ranks(reading, known_cluster)
    gpus = max(ranks or 1, known_cluster.num_gpus if known_cluster else 1)
    batch = reading.global_batch_size
    if ranks is not None and not batch:
        batch = batch_of({**reading.knobs, "dp": _replicas(reading.knobs, ranks)})
    values, option_notes = _options(subject, reading, present, path)
    notes += option_notes
    try:
        job = _present_job(subject, reading, known_model, ranks, batch)
    except AutotuneError as error:
        job = None
        notes.append(f"this configuration cannot be exported yet: {error}")
    settings, export_notes = _beyond_a_launch(subject, reading, values, job)
    notes += export_notes
    violated_rule = why_not(*job) if job else None  # checked on a placeholder cluster
    if violated_rule:
        notes.append(f"{NOT_VALID}{violated_rule}")
    if cluster is None:
        fill_in.append("cluster")
    fill_in += [] if reading.seq_len else ["workload.seq_len"]
    fill_in += [] if batch or reading.rl else ["workload.global_batch_size"]
    fill_in += asked_of_post_training(reading)
    defaults = {option.name: option.default for option in subject.options}
    values = {key: value for key, value in values.items() if value != defaults.get(key)}
    entries = [
        Entry(key="name", value=file_name(str(path.resolve()))),
        Entry(
            key="model",
            value=found_model[0] if found_model else STAND_IN_MODEL,
            comment="fill in: vocab_size, from the tokenizer" if lacks_vocab else about_model,
        ),
        Entry(
            key="cluster",
            value=cluster or "local",
            comment="" if cluster else _cluster_comment(ranks, reading.nodes),
        ),
        _workload_entry(reading, batch or _least_batch(reading.knobs, gpus), fill_in),
        *post_training_entries(reading, reading.seq_len or STAND_IN_SEQ_LEN),
        Entry(
            key="space",
            value=post_training_space(reading, name)
            if reading.rl
            else _space(known_cluster, ranks, known_model),
        ),
        *(() if violated_rule else (_baseline(reading.knobs),)),
        _trainer_entry(name, values, settings),
    ]
    if "seed" in reading.options:
        entries.append(Entry(key="seed", value=reading.options["seed"]))
    if known_cluster is None or not known_cluster.gpu.is_cpu:
        entries.append(time_limits())
    of_one_node = reading.nodes is None or reading.nodes[0] == 1
    if (ranks or 1) <= NODE and (known_cluster.num_nodes == 1 if known_cluster else of_one_node):
        entries.append(Entry(key="runner", value="local"))
    heading = (f"The current configuration of {name}, read from {path.name} by `autotune import`.",)
    return Draft(
        heading=heading,
        entries=tuple(entries),
        fill_in=tuple(fill_in),
        notes=(*notes, *_usage_notes(reading.options.get("steps"), settings, subject)),
        remarks=reading.remarks,
        nodes=reading.nodes,
    )


def _read(
    subject: Trainer, present: PresentConfiguration, path: Path, cluster: str | None
) -> Reading:
    """The configuration as the trainer reads it. Raises `SpecError` if a base file is missing, or
    the number of ranks, which determines the batch in post-training."""
    known_cluster = named_cluster(cluster) if subject.can_import else None
    if known_cluster is not None:
        present = replace(present, ranks_of_cluster=known_cluster.num_gpus)
    reading = subject.read_config(present)
    if reading.missing:
        raise SpecError(
            f"{path.name} is based on {', '.join(reading.missing)}, which was not found",
            remedy=f"run this command on the machine that has that file, because the file contains settings that {path.name} omits",
            field="FILE",
        )
    if reading.rl and "prompts" not in reading.rl and "dp" not in reading.knobs:
        raise SpecError(
            f"{path.name} does not give the number of GPUs, which determines the prompts per step",
            remedy="specify the cluster, such as --cluster h100-sxm-1x8, or add --num_processes to the command",
            field="--cluster",
        )
    return reading


def _options(
    subject: Trainer, reading: Reading, present: PresentConfiguration, path: Path
) -> tuple[dict[str, Any], list[str]]:
    """(the trainer's options that the spec keeps, with absolute paths of files; notes about
    them)"""
    values = {key: value for key, value in reading.options.items() if key not in OF_THE_RUN}
    notes = []
    if present.cwd and CWD in subject.options:
        if Path(present.cwd).is_dir():
            values[CWD.name] = present.cwd
        else:
            notes.append(
                f"the training runs in {present.cwd}, which is not a folder on this machine; set trainer.cwd to the path of this folder on the machines where trials run"
            )
    for option in subject.options:
        file = path.parent / (values.get(option.name) or "") if option.is_path else path.parent
        if file.is_file():
            values[option.name] = str(file.resolve())
    return values, notes


def _workload_entry(reading: Reading, batch: int, fill_in: Sequence[str]) -> Entry:
    unknown = [key.partition(".")[2] for key in fill_in if key.startswith("workload.")]
    fields = stated(
        # in post-training the batch follows from prompts, responses and mini-batches
        global_batch_size=None if reading.rl else batch,
        optimizer="" if reading.optimizer == "adamw" else reading.optimizer,
        pure_bf16=reading.pure_bf16,
        unfused_attention=reading.unfused_attention,
        peft=dict(reading.peft),
    )
    return Entry(
        key="workload",
        value={"seq_len": reading.seq_len or STAND_IN_SEQ_LEN, **fields},
        comment=f"fill in: {', '.join(unknown)}" if unknown else "",
    )


def _baseline(found: Mapping[str, Any]) -> Entry:
    """The entry `baseline`. Knobs without an effect get their neutral values, because programs
    accept `--sequence-parallel` with tp=1, but a space does not."""
    knobs = {name: value for name, value in found.items() if name in KNOBS}
    config = effective(
        ParallelConfig(**{"dp": 2, **knobs})
    )  # any dp above 1, if only the cluster determines it
    text = baseline_text({name: getattr(config, name) for name in KNOBS if name in found})
    comment = "the current configuration"
    if missing := sorted({"dp", "accumulation_steps"} - found.keys()):
        verb = "follows" if len(missing) == 1 else "follow"
        comment = f"{' and '.join(missing)} {verb} from the cluster and the batch"
    return Entry(key="baseline", value=text, comment=comment)


def _usage_notes(steps: int | None, settings: Mapping[str, Any], subject: Trainer) -> Iterator[str]:
    """Notes on what trials and exports do with the number of steps and with settings that are not
    knobs."""
    if steps is not None:
        yield f"trials choose their own number of steps; to keep this run's number of steps, export with --option steps={steps}"
    if settings:
        yield f"settings kept unchanged and written to every export: {', '.join(dotted(settings))}"
    if offloading := [path for path, value in flat(settings) if _is_offload(path, value)]:
        yield f"plans ignore {', '.join(offloading)} and count weights and states in host memory as GPU memory"
    if monitoring := split_by_path(settings, subject.watching)[1]:
        yield f"monitoring settings, which exports keep and trials omit: {', '.join(monitoring)}"


def _is_offload(path: str, value: Any) -> bool:
    """Whether a setting moves weights or optimizer states to host memory."""
    is_off = value in (None, False, "none", "null", "false", 0, "0", {})
    return (
        bool(
            re.search(r"offload(?!.*(pin_memory|buffer|fast_init|ratio|nvme_path|pipeline))", path)
        )
        and not is_off
    )


def _cluster_comment(ranks: int | None, nodes: tuple[int, int] | None) -> str:
    """The comment that asks for the cluster, with the current number of GPUs if it is known."""
    size = f", currently {number_of(ranks, 'GPU')}" if ranks else ""
    size += (
        f", {number_of(nodes[0], 'node')} x {number_of(nodes[1], 'GPU')}"
        if nodes and nodes[0] > 1
        else ""
    )
    return f"fill in: GPU-NODESxGPUS, e.g. h100-sxm-1x8{size}"


def _known_cluster(name: str) -> str | None:
    """The cluster's name in the catalog; None if the catalog does not have it."""
    try:
        return catalog.cluster(name).name if name else None
    except CatalogError:
        return None


def _trainer_entry(name: str, values: Mapping[str, Any], settings: Mapping[str, Any]) -> Entry:
    if not values and not settings:
        return Entry(key="trainer", value=name)
    parts = [
        Entry(key="kind", value=name),
        *(Entry(key=key, value=_plain(value)) for key, value in values.items()),
    ]
    if settings:
        comment = "kept from the file and written to every launch"
        inside = tuple(Entry(key=str(key), value=_plain(value)) for key, value in settings.items())
        parts.append(Entry(key=SETTINGS.name, comment=comment, parts=inside))
    return Entry(key="trainer", parts=tuple(parts))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _model(
    reading: Reading, path: Path, requested: str | None, folder: Path
) -> tuple[Any, ModelSpec, str] | None:
    """(value of `model` in the spec, its shape, a comment); None if the model is unknown. Raises
    `SpecError` for a wrong name or config.json."""
    if requested is not None:
        return (
            requested,
            read_model(requested, Path.cwd())
            if is_model_file(requested)
            else catalog.model(requested),
            "",
        )
    base = path if path.is_dir() else path.parent
    if reading.model_file and (base / reading.model_file).is_file():
        found = read_model(reading.model_file, base)
        return os.path.relpath((base / reading.model_file).resolve(), folder.resolve()), found, ""
    if not reading.model:  # perhaps the initial weights name a known model
        if (known_as := model_named(reading.options.get("model"), base, folder)) is None:
            return None
        name, comment = known_as
        return (
            name,
            read_model(name, folder) if is_model_file(name) else catalog.model(name),
            comment,
        )
    field_names = {f.name for f in fields(ModelSpec)}
    sizes_read = {k: v for k, v in reading.model.items() if k in field_names}
    try:
        shape = ModelSpec(**{"name": "imported", "vocab_size": STAND_IN_VOCAB, **sizes_read})
    except TypeError:  # a required size is missing
        return None
    for name in catalog.model_names():
        if _sizes(catalog.model(name)) == _sizes(shape):
            return name, catalog.model(name), ""
    default = ModelSpec(name="x", num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1)
    sizes = {f.name: getattr(shape, f.name) for f in fields(ModelSpec)}
    required = (
        "name",
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "ffn_hidden_size",
        "num_kv_heads",
    )
    return {k: v for k, v in sizes.items() if k in required or v != getattr(default, k)}, shape, ""


def _sizes(model: ModelSpec) -> ModelSpec:
    """The shape without its name and source, with the head size written out, for comparison."""
    return replace(model, name="shape", source="", attention_head_dim=model.head_dim)


def _ranks(reading: Reading, cluster: ClusterSpec | None) -> int | None:
    """GPUs of the configuration, with those for generation in post-training; those of the cluster
    if the configuration does not give dp; None if both are unknown."""
    if "dp" in reading.knobs:
        ranks: int = math.prod(reading.knobs.get(degree, 1) for degree in ("tp", "pp", "dp", "cp"))
        placement = reading.rl.get("placement") or {}  # includes the GPUs for generation
        return sum(next((gpus for gpus in placement.values() if isinstance(gpus, list)), (ranks,)))
    return cluster.num_gpus if cluster else None


def _replicas(knobs: Mapping[str, Any], ranks: int) -> int:
    """Data-parallel replicas: `ranks` / (tp x pp x cp). For configurations in which only the
    cluster determines dp."""
    others: int = math.prod(knobs.get(degree, 1) for degree in ("tp", "pp", "cp"))
    return max(1, ranks // others)


def _least_batch(knobs: Mapping[str, Any], ranks: int) -> int:
    """The smallest batch that the replicas of the configuration and of the cluster can share
    evenly. Used if the configuration gives none."""
    replicas = _replicas(knobs, ranks)
    usual = {"micro_batch_size": 1, "accumulation_steps": 1, "dp": replicas}
    return math.lcm(batch_of({**usual, **knobs}) or 1, replicas)


def _space(cluster: ClusterSpec | None, ranks: int | None, model: ModelSpec | None) -> str:
    """The name of the bundled space that fits the model and the cluster."""
    nodes = cluster.num_nodes if cluster else -(-(ranks or 1) // NODE)
    if model is not None and model.num_experts:
        return "moe-multi-node"
    if (cluster.num_gpus if cluster else ranks) == 1:
        return "single-gpu"
    return "dense-multi-node" if nodes > 1 else "dense-single-node"


def _present_job(
    subject: Trainer,
    reading: Reading,
    model: ModelSpec | None,
    ranks: int | None,
    batch: int | None,
) -> tuple[Workload, ParallelConfig] | None:
    """(workload, config) of the current configuration, on a placeholder cluster; None if the model,
    the ranks, the batch or the sequence length is unknown. Raises `AutotuneError` for an invalid
    one."""
    if not (model and ranks and batch and reading.seq_len):
        return None
    nodes, per_node = (1, ranks) if ranks <= NODE else (-(-ranks // NODE), NODE)
    workload = Workload(
        model=model,
        cluster=catalog.cluster_of(STAND_IN_CLUSTER, num_nodes=nodes, gpus_per_node=per_node),
        seq_len=reading.seq_len,
        global_batch_size=batch,
        optimizer=reading.optimizer or "adamw",
        pure_bf16=reading.pure_bf16,
        unfused_attention=reading.unfused_attention,
        trainer=subject.name,
        rl=present_post_training(reading, batch) if reading.rl else None,
    )
    return workload, effective(
        complete(workload, {k: v for k, v in reading.knobs.items() if k in KNOBS})
    )


def _in_folder(reading: Reading, folder: str) -> tuple[Reading, list[str]]:
    """(the reading with the script's folder written out, notes on settings that only the shell can
    compute)"""
    options = {name: _written_out(value, folder) for name, value in reading.options.items()}
    settings = _written_out(dict(reading.settings), folder)
    notes = [
        f"{path}: only the shell can compute {value!r:.60}; write the computed value instead"
        for path, value in flat(settings)
        if OF_SHELL.search(str(value))
    ]
    model_file = _written_out(reading.model_file, folder)
    return replace(reading, options=options, settings=settings, model_file=model_file), notes


def _written_out(value: Any, folder: str) -> Any:
    """The value with `OF_SCRIPT` replaced by the folder in all its texts."""
    if isinstance(value, Mapping):
        return {key: _written_out(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_written_out(inner, folder) for inner in value]
    if not isinstance(value, str) or OF_SCRIPT not in value:
        return value
    found = value.replace(OF_SCRIPT, folder)
    return os.path.normpath(found) if value.startswith(OF_SCRIPT) else found


def _beyond_a_launch(
    subject: Trainer,
    reading: Reading,
    options: Mapping[str, Any],
    job: tuple[Workload, ParallelConfig] | None,
) -> tuple[dict[str, Any], list[str]]:
    """(settings that an export would not write by itself, notes on what an export adds or
    changes)"""
    if job is None:
        return dict(reading.settings), []
    workload, config = job
    try:
        exported = subject.read_config(
            PresentConfiguration.of_launch(subject.launch(workload, config, options))
        )
    except AutotuneError as error:
        return dict(reading.settings), [f"this configuration cannot be exported yet: {error}"]
    settings = without_equal(reading.settings, exported.settings)
    notes = []
    changed = {
        k: v for k, v in exported.knobs.items() if k in reading.knobs and getattr(config, k) != v
    }
    if changed:
        notes.append(
            "an export changes "
            + ", ".join(f"{k}: {getattr(config, k)} to {v}" for k, v in changed.items())
        )
    if added := sorted(set(dotted(exported.settings)) - set(dotted(reading.settings))):
        notes.append(
            f"an export also writes settings that the current configuration leaves at their defaults: {', '.join(added)}"
        )
    return settings, notes
