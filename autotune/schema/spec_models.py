"""Pydantic models of a study spec: its keys with their types, bounds, and JSON schema.

`autotune.schema.parsing` turns a validated document into frozen values. Numbers are strict: text
and booleans are rejected, except for text such as `1e-3`, which YAML 1.1 does not read as a number.
Unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from autotune.errors import SpecError
from autotune.schema.document import (
    Bytes,
    BytesPerSecond,
    Deferred,
    Document,
    DocumentLength,
    FlopsPerSecond,
    Fraction,
    GpuSeconds,
    Latency,
    Name,
    Number,
    Positive,
    Seconds,
    SequenceLength,
    Text,
    Tokens,
    either,
    with_unit,
)
from autotune.schema.model_documents import ModelValue
from autotune.schema.rl_documents import LengthsValue, PostTrainingDocument, RolloutDocument
from autotune.schema.space_models import OwnScalar, OwnValues, Sizes, SpaceDocument
from autotune.slurm.allocation import seconds_of
from autotune.spec import KNOBS, Budget, MeasureSpec, Objective
from autotune.spec.texts.quantity import TIME

MAX_OWN_KNOBS = 16
"""maximum number of a study's own knobs"""
_OBJECTIVE, _BUDGET, _MEASURE = Objective(), Budget(), MeasureSpec()


Word = Annotated[StrictStr, Field(pattern=r"^[^\s\"'`$\\]{1,1000}$")]
"""text without blanks or quotes, which sbatch and shells leave unchanged"""
Line = Annotated[StrictStr, Field(pattern=r"^[^\n\r\x00]{1,1000}$")]
SET_BY_AUTOTUNE = frozenset(
    {
        "job-name",
        "ntasks",
        "ntasks-per-node",
        "output",
        "signal",
        "open-mode",
        "dependency",
        "no-requeue",
        "no-kill",
        "chdir",
        "array",
        "wrap",
    }
)
"""sbatch options that autotune writes itself, so a spec cannot set them"""
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"]


class GpuDocument(Document, defer_build=True):
    """An accelerator, as in its datasheet."""

    name: Name
    memory_bytes: Bytes
    peak_flops_per_s: dict[Precision, FlopsPerSecond]
    memory_bytes_per_s: BytesPerSecond
    host_bytes_per_s: BytesPerSecond | None = Field(
        default=None,
        description="bandwidth of the link to host memory, in one direction; default: that of PCIe 5.0 x16",
    )
    measured_flops_per_s: dict[Precision, FlopsPerSecond] = Field(
        default={}, description="largest measured rate of a dense matmul, by precision"
    )
    source: str = ""
    usual_fabric: Fabric | None = None
    usd_per_hour: Positive | None = None
    power_watts: Positive | None = None
    rated_watts: Positive | None = Field(
        default=None,
        description="power at which the peaks and rates were measured; set it only if power_watts is lower",
    )


Fabric = Literal[
    "efa",
    "infiniband-edr",
    "infiniband-hdr",
    "infiniband-ndr",
    "infiniband-xdr",
    "roce",
    "ethernet",
    "nvlink",
]


class LinkDocument(Document, defer_build=True):
    """A link between GPUs; its figures are per GPU in each direction. Omitted keys are taken from the GPU's catalog entry, or from the usual port of the fabric."""

    latency_s: Latency | None = None
    bytes_per_s: BytesPerSecond | None = None
    fabric: Fabric | None = Field(
        default=None, description="kind of network between nodes; `ethernet` is TCP without RDMA"
    )


class ClusterDocument(Document, defer_build=True):
    """Identical nodes with GPUs. Omitted links are taken from the catalog."""

    name: Name | None = None
    gpu: Annotated[
        Annotated[Text, Tag("<name>")] | Annotated[GpuDocument, Tag("<inline>")],
        either("<name>", "<inline>"),
    ]
    num_nodes: Annotated[StrictInt, Field(ge=1, le=1 << 20)] = 1
    gpus_per_node: Annotated[StrictInt, Field(ge=1, le=1 << 12)] = 8
    gpus_per_domain: Annotated[StrictInt, Field(ge=0, le=1 << 20)] | None = Field(
        default=None,
        description="GPUs joined by the intra_node link, if it spans nodes (72 in a GB200 NVL72 rack). 0 means the GPUs of one node",
    )
    intra_node: LinkDocument | None = None
    inter_node: LinkDocument | None = None
    usd_per_hour: Positive | None = Field(
        default=None, description="price of one GPU-hour, if it differs from the catalog's"
    )


ClusterValue = Annotated[
    Annotated[Text, Tag("<name>")]
    | Annotated[ClusterDocument, Deferred(ClusterDocument), Tag("<inline>")],
    either("<name>", "<inline>"),
]


class TargetDocument(Document, defer_build=True):
    """The large job to plan for, if you have fewer GPUs than it will use."""

    cluster: ClusterValue = Field(
        description="catalog name (GPU-NODESxGPUS), or the fields inline; the GPU type must be that of the study's `cluster`"
    )
    global_batch_size: Sizes | None = Field(
        default=None,
        description="sequences per optimizer step of that job; default: the workload's",
    )
    seq_len: SequenceLength | None = Field(
        default=None, description="tokens per sequence of that job; default: the workload's"
    )


class PeftDocument(Document, defer_build=True):
    """Fine-tuning that trains only low-rank adapters."""

    method: Literal["lora", "qlora"] = Field(
        default="lora", description="qlora keeps the frozen weights in 4 bits"
    )
    rank: Annotated[StrictInt, Field(ge=1, le=1 << 16)] = Field(
        default=16, description="inner width of an adapter"
    )
    targets: Literal["attention", "all"] = Field(
        default="all", description="projections with adapters: attention only, or MLP too"
    )
    library: Literal["", "peft"] = Field(
        default="",
        description="peft: Hugging Face's PEFT adapters, which cast their inputs to fp32",
    )
    upcast: StrictBool | None = Field(
        default=None,
        description="whether the program casts embeddings, norms and the output projection to fp32, as PEFT's `prepare_model_for_kbit_training` does; default: true for qlora with PEFT, unless ZeRO-3 or FSDP shards the weights",
    )
    frozen_fp32: StrictBool = Field(
        default=False,
        description="with lora: whether the program loads the frozen weights in fp32 and leaves them in fp32, as TRL does unless `dtype` is set",
    )


class WorkloadDocument(Document, defer_build=True):
    """What one optimizer step trains on."""

    seq_len: SequenceLength = Field(description="tokens per sequence")
    global_batch_size: Sizes | None = Field(
        default=None,
        description="sequences per optimizer step, or a list of allowed values; with `rl` it follows from prompts, responses and mini_batches",
    )
    lengths: LengthsValue | None = Field(
        default=None,
        description="lengths of unequal sequences: mean and percentiles, a histogram, or a file",
    )
    optimizer: Literal["adamw", "sgd", "adamw_8bit", "muon", "adafactor"] = "adamw"
    document_len: DocumentLength = Field(
        default=0,
        description="mean document length in tokens, if sequences are packed from documents that do not attend to each other. 0 means that each sequence is one document",
    )
    peft: PeftDocument | None = Field(
        default=None, description="train only adapters; default: all weights"
    )
    pure_bf16: StrictBool = Field(
        default=False,
        description="whether the program keeps weights, gradients and moments in bf16",
    )
    shards_in_fp32: StrictBool = Field(
        default=False,
        description="with pure_bf16: whether sharded weights are kept in fp32 (accelerate, transformers' Trainer)",
    )
    unfused_attention: StrictBool = Field(
        default=False, description="whether the program's attention stores the score matrix"
    )
    attention_kernel: Literal["", "flash2", "flash3", "cudnn"] = Field(
        default="",
        description="the program's attention kernel, if its user chooses it; default: the trainer's own",
    )
    loop: Literal[
        "",
        "accelerate",
        "deepspeed",
        "hf_trainer",
        "lightning",
        "megatron",
        "nanotron",
        "torchtitan",
    ] = Field(
        default="", description="the trainer whose training loop your own program uses, if known"
    )


class ObjectiveDocument(Document, defer_build=True):
    """What makes a config better."""

    metric: Literal["throughput", "goodput", "cost"] = "throughput"
    stability_weight: Fraction = _OBJECTIVE.stability_weight


_MTBF = Field(gt=0, le=100 * 366 * 86400)


class FailuresDocument(Document, defer_build=True):
    """Cluster failures and the cost of a checkpoint. They determine how often to save and how much time is lost."""

    node_mtbf_s: Annotated[Number, _MTBF, with_unit(TIME, _MTBF)] = Field(
        description="mean time between failures of one node, e.g. 30 d"
    )
    restart_s: Seconds = Field(description="time from a failure until training continues")
    checkpoint_s: Seconds | None = Field(
        default=None, description="time for which a checkpoint blocks training"
    )
    checkpoint_bytes: Bytes | None = Field(
        default=None, description="size of a checkpoint, if `checkpoint_s` is unknown"
    )
    write_bytes_per_s: BytesPerSecond | None = Field(
        default=None, description="bandwidth of the storage for the whole job"
    )
    replicas: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(
        default=1,
        description="number of groups with identical weights that can continue without each other (torchft, HSDP)",
    )


class BudgetDocument(Document, defer_build=True):
    """Limits of the study: it ends when one is reached, or earlier."""

    max_trials: Annotated[StrictInt, Field(ge=1, le=100_000)] = _BUDGET.max_trials
    max_wall_s: Seconds = _BUDGET.max_wall_s
    max_failed_trials: Annotated[StrictInt, Field(ge=1, le=100_000)] = _BUDGET.max_failed_trials
    max_gpu_s: GpuSeconds | None = _BUDGET.max_gpu_s
    train_tokens: Tokens | None = _BUDGET.train_tokens
    min_gain: Fraction | None = _BUDGET.min_gain
    parallel_trials: Annotated[StrictInt, Field(ge=1, le=1024)] = _BUDGET.parallel_trials


class MeasureDocument(Document, defer_build=True):
    """How a trial is measured."""

    warmup_steps: Annotated[StrictInt, Field(ge=0, le=10_000)] = _MEASURE.warmup_steps
    first_look: Annotated[StrictInt, Field(ge=0, le=100_000)] = _MEASURE.first_look
    min_steps: Annotated[StrictInt, Field(ge=1, le=100_000)] = _MEASURE.min_steps
    max_steps: Annotated[StrictInt, Field(ge=1, le=100_000)] = _MEASURE.max_steps
    precision: Annotated[Number, Field(gt=0, le=1)] = _MEASURE.precision
    finalists: Annotated[StrictInt, Field(ge=0, le=100)] = _MEASURE.finalists
    final_rounds: Annotated[StrictInt, Field(ge=0, le=100)] = _MEASURE.final_rounds
    stability_steps: Annotated[StrictInt, Field(ge=0, le=100_000)] = _MEASURE.stability_steps
    start_timeout_s: Seconds = _MEASURE.start_timeout_s
    step_timeout_s: Seconds = _MEASURE.step_timeout_s
    trial_timeout_s: Seconds = _MEASURE.trial_timeout_s

    @model_validator(mode="after")
    def _steps_agree(self) -> MeasureDocument:
        """Check the numbers of steps against each other."""
        if self.first_look in (1, 2):
            raise PydanticCustomError(
                "first_look",
                "first_look must be 0 (none) or at least 3, but first_look={look}; one or two slow steps are not enough",
                {"look": self.first_look},
            )
        if self.max_steps < self.min_steps:
            raise PydanticCustomError(
                "steps",
                "max_steps must be at least min_steps, but max_steps={most} and min_steps={least}",
                {"most": self.max_steps, "least": self.min_steps},
            )
        if self.stability_steps and not (self.finalists and self.final_rounds):
            raise PydanticCustomError(
                "stability_steps",
                "stability_steps apply to the last final round, but finalists={finalists} and final_rounds={rounds}, so there is no final round",
                {"finalists": self.finalists, "rounds": self.final_rounds},
            )
        return self


class KindDocument(BaseModel):
    """A trainer or a runner with its options."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    kind: Name

    @property
    def options(self) -> dict[str, Any]:
        """All keys except `kind`."""
        return dict(self.__pydantic_extra__ or {})


Kind = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[KindDocument, Tag("<inline>")],
    either("<name>", "<inline>"),
]
ConfigValue = Annotated[
    Annotated[OwnScalar, Tag("<one>")]
    | Annotated[dict[StrictStr, OwnScalar], Field(max_length=MAX_OWN_KNOBS), Tag("<extra>")],
    Discriminator(lambda value: "<extra>" if isinstance(value, dict) else "<one>"),
]
"""a knob's value, or for `extra` the values of the study's own knobs, as in config documents"""
Config = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[
        dict[StrictStr, ConfigValue], Field(max_length=len(KNOBS) + MAX_OWN_KNOBS), Tag("<inline>")
    ],
    either("<text>", "<inline>"),
]


class ContainerDocument(Document, defer_build=True):
    """The container image for a job's trials (pyxis and enroot)."""

    image: Word = Field(description="image file (.sqsh) or name, as for `srun --container-image`")
    mounts: Annotated[list[Word], Field(max_length=100)] = Field(
        default=[],
        description="folders to mount in addition to the study's: FOLDER or FOLDER:WHERE",
    )


def _job_time(value: Any) -> Any:
    """Return a time limit in seconds, from text such as 4h or in Slurm's format. A plain number is
    rejected, because it may mean minutes or seconds."""
    remedy = "write 4h or 90min, or in quotes '04:00:00' or '1-12:00:00'"
    if isinstance(value, str):
        if ":" in value or "-" in value:
            seconds = seconds_of(value)
        else:
            try:
                seconds = TIME.parse(value) if not value.strip().isdigit() else None
            except SpecError as error:
                raise PydanticCustomError(
                    "quantity", "{words}", {"words": error.message, "remedy": remedy}
                ) from None
        if seconds is not None:
            return seconds
    words = f"must be a time with a unit, but is {value!r}; a plain number may mean minutes (Slurm) or seconds"
    raise PydanticCustomError("quantity", "{words}", {"words": words, "remedy": remedy})


JobTime = Annotated[
    Number,
    Field(ge=60, le=366 * 86400),
    BeforeValidator(
        _job_time, json_schema_input_type=Annotated[str, Field(max_length=40, examples=["4h"])]
    ),
]


class SlurmDocument(BaseModel):
    """The Slurm job that runs the study (`autotune tune SPEC --on slurm`). Other keys become sbatch options: {constraint: h100}."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    time: JobTime | None = Field(
        default=None, description="time limit, e.g. 4h; default: the partition's"
    )
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    nodes: Annotated[StrictInt, Field(ge=1, le=1 << 20)] | None = Field(
        default=None, description="only with `cluster: slurm`; otherwise determined by the cluster"
    )
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=1 << 12)] | None = Field(
        default=None, description="only with `cluster: slurm`; otherwise determined by the cluster"
    )
    requeue: StrictBool = Field(
        default=False,
        description="true: the study pauses at the job's time limit and the job is requeued. false: the study names a winner before the limit",
    )
    spare_nodes: Annotated[StrictInt, Field(ge=0, le=1024)] = Field(
        default=0, description="extra nodes that replace lost ones"
    )
    exclusive: StrictBool = Field(default=True, description="whether the job gets whole nodes")
    setup: Annotated[list[Line], Field(max_length=100)] = Field(
        default=[], description="script lines to run before autotune starts, e.g. to load modules"
    )
    container: ContainerDocument | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The keys that become sbatch options."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _options_of_sbatch(self) -> SlurmDocument:
        """Check that the extra keys are valid sbatch options."""
        for key, value in self.options.items():
            name = key.replace("_", "-")
            if name in SET_BY_AUTOTUNE:
                words, remedy = f"autotune sets {key} itself", f"omit {key}"
            elif not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                words, remedy = (
                    f"{key!r} is not an sbatch option",
                    "write the option as in `sbatch --help`, e.g. constraint: h100",
                )
            elif not isinstance(value, str | int | float) or re.search(r"[\s\"'`$\\]", str(value)):
                words, remedy = (
                    f"{key} must be one word, a number or true, but is {value!r}",
                    "sbatch reads an option up to the next space",
                )
            else:
                continue
            raise PydanticCustomError("quantity", "{words}", {"words": words, "remedy": remedy})
        return self


class VolumeDocument(Document, defer_build=True):
    """A volume to mount in the pods of a job."""

    claim: Word = Field(description="name of the PersistentVolumeClaim")
    path: Annotated[Word, Field(pattern="^/")] = Field(description="mount path in the pods")


class KubernetesDocument(Document, defer_build=True):
    """The RayJob that runs the study (`autotune tune SPEC --on kubernetes`): one pod per node of the cluster."""

    image: Word = Field(
        description="container image with autotune, Ray, the program and its libraries"
    )
    time: JobTime | None = Field(
        default=None,
        description="time limit from the start of the first pod, e.g. 4h. The study names a winner before this limit; the job ends at most 15 minutes later. Default: none",
    )
    namespace: Word | None = Field(
        default=None, description="namespace of the job; default: kubectl's context"
    )
    queue: Word | None = Field(default=None, description="Kueue's local queue")
    store: Word | None = Field(
        default=None,
        description="secret whose key `url` holds the address of the PostgreSQL database for the results",
    )
    results: Word | None = Field(
        default=None,
        description="instead of `store`: a folder on a volume; each study gets its own subfolder",
    )
    files: Annotated[list[Word], Field(max_length=100)] = Field(
        default=[],
        description="files to send to the pods with the spec, such as the program; at most 1 MiB in total",
    )
    env_from: Annotated[list[Word], Field(max_length=20)] = Field(
        default=[], description="secrets whose keys become environment variables of the pods"
    )
    volumes: Annotated[list[VolumeDocument], Field(max_length=20)] = Field(default=[])
    cpus: Annotated[StrictInt, Field(ge=1, le=1 << 12)] | None = Field(
        default=None, description="CPUs of each pod"
    )
    memory: Annotated[StrictStr, Field(pattern=r"^[0-9]+([EPTGM]i?|Ki|k)$")] | None = Field(
        default=None, description="memory of each pod, e.g. 128Gi"
    )
    gpu_resource: Word = Field(
        default="nvidia.com/gpu", description="name of the GPU resource in Kubernetes"
    )
    node_selector: Annotated[dict[StrictStr, StrictStr], Field(max_length=20)] = Field(
        default={}, description="labels of the nodes to run on"
    )
    retries: Annotated[StrictInt, Field(ge=0, le=100)] = Field(
        default=2,
        description="how many times a failed job is restarted; each restart continues the same study",
    )


class StudyDocument(Document, defer_build=True):
    """A tuning job, as requested."""

    name: Name | None = Field(default=None, description="name; default: model and cluster")
    model: ModelValue = Field(
        description="catalog name or path to a Hugging Face config.json (the native decoder of these shapes), {hf: PATH} (transformers' own class), "
        "{module: PACKAGE.MODULE:FUNCTION} (your own), {name: NAME, mtp_layers: N} (a catalog name or path with its multi-token prediction layers), or the fields inline"
    )
    cluster: ClusterValue = Field(
        description="catalog name (GPU-NODESxGPUS), `local`, `slurm` (the nodes of the job), or the fields inline"
    )
    target: (
        Annotated[
            Annotated[Text, Tag("<name>")]
            | Annotated[TargetDocument, Deferred(TargetDocument), Tag("<inline>")],
            either("<name>", "<inline>"),
        ]
        | None
    ) = Field(
        default=None,
        description="the large job you plan, if it has more GPUs than `cluster`. Trials on `cluster` then represent its configs. A cluster's catalog "
        "name, or {cluster, global_batch_size, seq_len}",
    )
    workload: WorkloadDocument
    rl: Annotated[PostTrainingDocument, Deferred(PostTrainingDocument)] | None = Field(
        default=None,
        description="a post-training step (grpo, dapo, ppo, dpo): prompts, responses, their lengths, and where responses are generated",
    )
    rollout: Annotated[RolloutDocument, Deferred(RolloutDocument)] | None = Field(
        default=None,
        description="generation speed for `rl`, as numbers or from a log; it is not modeled",
    )
    space: Annotated[
        Annotated[Text, Tag("<name>")] | Annotated[SpaceDocument, Tag("<inline>")],
        either("<name>", "<inline>"),
    ] = Field(description="name of a built-in search space, path to a file, or the knobs inline")
    knobs: Annotated[dict[StrictStr, OwnValues], Field(max_length=MAX_OWN_KNOBS)] = Field(
        default={},
        description="the study's own knobs with their values, the default first: {num_workers: [0, 2, 4], flash: [false, true]}",
    )
    objective: ObjectiveDocument = ObjectiveDocument.model_construct()
    failures: Annotated[FailuresDocument, Deferred(FailuresDocument)] | None = Field(
        default=None,
        description="cluster failures and the cost of a checkpoint; used by the metric goodput",
    )
    budget: BudgetDocument = BudgetDocument.model_construct()
    measure: MeasureDocument = MeasureDocument.model_construct()
    searcher: Name = "bayesian"
    trainer: Kind = "native"
    runner: Kind = "ray"
    check: StrictBool = Field(
        default=True,
        description="whether a program that is new to the store is first checked by running a few steps",
    )
    calibrate: StrictBool = Field(
        default=True,
        description="whether to calibrate this machine for about 15 s before the first real trial, if it has no calibration",
    )
    outputs: Literal["own", "keep"] = Field(
        default="own",
        description="where trials of a program write. `own`: to a separate folder per trial if the program allows it; existing files are restored. `keep`: to the program's usual location, replacing existing files",
    )
    probe: StrictBool = Field(
        default=True,
        description="whether the probe observes the program: its optimizer steps, micro-batches, model and files",
    )
    slurm: Annotated[SlurmDocument, Deferred(SlurmDocument)] | None = Field(
        default=None,
        description="the Slurm job that runs the study, with `autotune tune SPEC --on slurm`",
    )
    kubernetes: Annotated[KubernetesDocument, Deferred(KubernetesDocument)] | None = Field(
        default=None,
        description="the RayJob that runs the study, with `autotune tune SPEC --on kubernetes`",
    )
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 31)] = 0
    data: Text | None = Field(
        default=None, description="text or .bin file to train on; default: the bundled text"
    )
    baseline: Config | None = Field(
        default=None,
        description="the config that trials are compared with; default: pure data parallelism. dp and accumulation_steps follow from the other knobs",
    )
    enqueue: Annotated[list[Config], Field(max_length=1000)] = Field(
        default=[],
        description="configs to try first; dp and accumulation_steps follow from the other knobs if omitted",
    )
