"""The command `recheck`, which re-measures an old study's winner, runner-up and baseline."""

from __future__ import annotations

import json as plain
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.exit_codes import FAILED, INCONCLUSIVE
from autotune.cli.output import JsonOption, StoreOption, StudyArgument, emit, note, reject_dash
from autotune.errors import SpecError


def parse_share(text: str) -> float:
    """Parse a share in the range [0, 1), e.g. 3% or 0.03. Raises `typer.BadParameter`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise typer.BadParameter(
            f"must be a percentage from 0% to 100%, such as 3%, but is {text!r}"
        )
    return value


def recheck(
    study: StudyArgument,
    max_slowdown: Annotated[
        float | None,
        typer.Option(
            "--max-slowdown",
            metavar="SHARE",
            parser=parse_share,
            help="Exit with 1 if the configs are significantly slower and the slowdown may exceed this limit, e.g. 3%. Exit with 4 if other processes made the measurement inconclusive.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=2, help="Measurements per config.")
    ] = 2,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit",
            metavar="FILE",
            callback=reject_dash,
            help="Write the result to this JUnit file.",
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary",
            metavar="FILE",
            callback=reject_dash,
            help="Append the result to this Markdown file.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="SPEC",
            callback=reject_dash,
            help="Write the spec of the proposed study to this file.",
        ),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Re-measure a study's winner, runner-up and baseline side by side, and report changes.

    The report shows changes in speed, versions and ranking. A new study is proposed only if the ranking changed or the configs are slower.
    """
    from autotune import api
    from autotune.study.recheck import junit as as_junit
    from autotune.study.recheck import markdown, proposal, recheck_study
    from autotune.trainers.documents.file_formats import to_yaml

    if output is not None and output.exists():
        raise SpecError(
            f"{output} already exists", remedy="choose another file with -o", field="-o"
        )
    with closing(api.open_store(store, create=False)) as database:
        record, result = recheck_study(
            database, study, rounds=rounds, max_slowdown=max_slowdown, say=note
        )
    if junit is not None:
        junit.write_text(as_junit(result), encoding="utf-8")
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(markdown(result))
    propose = result.is_slower or (not result.order_holds and not result.is_inconclusive)
    next_study = proposal(record.spec, result) if propose else None
    if output is not None and next_study is not None:
        output.write_text(
            plain.dumps(next_study, indent=2) + "\n"
            if output.suffix == ".json"
            else to_yaml(next_study),
            encoding="utf-8",
        )
    if json:
        emit({**result.to_dict(), "proposal": next_study})
    else:
        print(markdown(result), end="")
        if next_study is not None:
            spec_text = f"{output}" if output is not None else "the spec written with -o FILE"
            print(
                f"\nproposed: a new study based on this one; start it with autotune tune {spec_text}"
            )
    if max_slowdown is not None and (result.is_slower or result.is_inconclusive):
        raise typer.Exit(FAILED if result.is_slower else INCONCLUSIVE)
