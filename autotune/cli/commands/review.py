"""The command `review`, which analyzes a launch without running it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.commands.onboarding import (
    BatchOption,
    ModelOption,
    PrecisionOption,
    SequenceOption,
)
from autotune.cli.output import (
    JsonOption,
    StoreOption,
    emit,
    line_width,
    note,
    reject_dash,
    write_text,
)
from autotune.cli.quantities import time_s, tokens
from autotune.errors import SpecError

if TYPE_CHECKING:
    from autotune.ports import ServiceStore
    from autotune.reviews import Review
    from autotune.spec import ClusterSpec

LOCAL = "local"


def review(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET | -- COMMAND ...",
            help="A shell or Slurm script, a Python script, a trainer's configuration, a Kubernetes manifest or a study spec; or a command after `--`.",
        ),
    ],
    model: ModelOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="GPU-NODESxGPUS (h100-sxm-1x8), a GPU type (h100-sxm), or local.",
        ),
    ] = None,
    seq_len: SequenceOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="KNOB=VALUE,...",
            help="Current config, if the launch does not contain it.",
        ),
    ] = None,
    train_tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens",
            metavar="TOKENS",
            parser=tokens,
            help="Also show days and cost of training on this many tokens.",
        ),
    ] = None,
    measured: Annotated[
        float | None,
        typer.Option(
            "--measured", metavar="TIME", parser=time_s(), help="Measured step time, e.g. 2.1s."
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", help="Log of the launch, from which step times are read."
        ),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print the edits as a patch for the file.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE",
            callback=reject_dash,
            help="Write a copy of the file with all edits.",
        ),
    ] = None,
    kubeflow: Annotated[
        bool,
        typer.Option(
            "--kubeflow",
            help="Read TARGET (`-`: stdin) as a TrainJob or an AdmissionReview, and print the JSON patch or the admission response.",
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Print the whole review, not only its 25 most important lines."),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Review a launch without running it: whether it fits, how fast it should be, and which edits make it faster."""
    from autotune.reviews import MOST, WIDTH, lines_of
    from autotune.reviews import review as review_launch

    endings = (".yaml", ".yml", ".toml", ".json")
    script_endings = (
        (".sh", *endings) if target[0].endswith(".sh") else ()
    )  # a shell script may have arguments
    if len(target) > 1 and (target[0].endswith(endings) or target[1].endswith(script_endings)):
        raise SpecError(
            f"only one TARGET is allowed, but {target[1]!r} follows {target[0]!r}",
            remedy="put a command after `--`: autotune review -- torchrun train.py ...",
            field="TARGET",
        )
    options = {
        "model": model,
        "cluster": cluster,
        "seq_len": seq_len,
        "batch": batch,
        "config": config,
    }
    if kubeflow:
        _recommend(target[0], options)
        return
    with known_store(store, cluster) as database:
        result: Review = review_launch(
            target if len(target) > 1 else target[0],
            model=model,
            cluster=cluster,
            seq_len=seq_len,
            batch=batch,
            precision=precision,
            config=config,
            measured_s=measured,
            log=None if log is None else read_text(log),
            store=database,
            local_cluster=_local_cluster,
        )
    if write is not None:
        _write(result, write)
        _note_missing_edits(result)
    if json:
        emit({**result.to_dict(), **_bill(result, train_tokens)})
    elif diff:
        from autotune.reviews.lines import patch

        print(patch(result.texts, result.lines), end="")
        _note_missing_edits(result)
    else:
        width = min(WIDTH, line_width())
        for line in lines_of(
            result, tokens=train_tokens, most=None if everything else MOST, width=width
        ):
            print(line)
    if result.missing:
        raise typer.Exit(2)
    if result.fits is False:
        raise typer.Exit(1)


def known_store(
    url: str | None, cluster: str | None
) -> AbstractContextManager[ServiceStore | None]:
    """Return the results database, which has the cluster's measured speed: the given one, or this
    machine's if it exists. None if there is none, because a review creates no database."""
    from autotune.settings import settings

    if url is None and cluster != LOCAL:
        return nullcontext()
    address = url or settings().store
    if url is None and "://" not in address and not Path(address).exists():
        return nullcontext()
    from autotune.store import open_store

    return closing(open_store(address, create=url is None))


def _local_cluster() -> ClusterSpec:
    from autotune.detect import local_cluster

    return local_cluster()


def _recommend(file: str, options: Mapping[str, object]) -> None:
    import sys

    from autotune.reviews.kubeflow import recommended

    answer, why = recommended(
        sys.stdin.read() if file == "-" else read_text(Path(file), "TARGET"), **options
    )
    emit(answer)
    if why:
        note(why)


def _note_missing_edits(result: Review) -> None:
    """Print what the edited lines alone leave out of the proposed launch."""
    if result.unplaced:
        note(
            f"set these options too, because the files have no lines for them: {', '.join(result.unplaced)}"
        )
    if result.together is None and not result.missing:
        note("no edit is proposed; run the review without --diff to see why")


def _bill(result: Review, tokens: float | None) -> dict[str, Any]:
    """Return days and cost of the whole training, or an empty document without `tokens` or a
    prediction."""
    from autotune.plan.plan import Bill

    if tokens is None or result.estimate is None or result.study is None:
        return {}
    return {
        "bill": Bill.of(
            result.study.workload.cluster, float(result.estimate.tokens_per_s), tokens
        ).to_dict()
    }


def _write(result: Review, file: Path) -> None:
    from autotune.reviews.lines import edited

    changed = edited(result.texts, result.lines)
    if not changed:
        raise SpecError(
            "there is no edit to write",
            remedy="run the review without --write to see why",
            field="--write",
        )
    if file.exists():
        raise SpecError(f"{file} exists", remedy="choose another file", field="--write")
    for name, text in changed.items():
        path = file if len(changed) == 1 else file.with_name(f"{file.stem}-{Path(name).name}")
        write_text(path, text, field="--write", remedy="choose another file")
        note(f"wrote {path}, a copy of {name} with the edits")


def read_text(path: Path, field: str = "--log") -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        from autotune.spec.checks import nearest_file

        raise SpecError(
            f"{path} cannot be read: {error.strerror}", remedy=nearest_file(path), field=field
        ) from None
