"""The routes of a study's figures: their list, and each figure's data (CSV) and drawing (SVG)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune.errors import NotFoundError
from autotune.report.figures.figure_html import MISSING
from autotune.results.figure import Figure
from autotune.service.http.error_responses import StrictJSONResponse
from autotune.service.http.service_state import Reader, ServiceState, StudyId, TheService
from autotune.service.routes.response_models import Answer, responses

router = APIRouter(tags=["studies"])

CSV, SVG = "text/csv", "image/svg+xml"
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""policy for a drawing, which contains its own style sheet"""
FigureName = Annotated[
    str, Path(pattern=r"^[a-z_]{1,60}$", description="name of the figure", examples=["best_so_far"])
]


class FigureDocument(Answer):
    """A figure of a study: its texts, and the addresses of its data and drawing."""

    name: str = Field(examples=["best_so_far"])
    title: str = Field(examples=["Best so far over trials"])
    shows: str = Field(description="what the figure shows, with units")
    how_to_read: str = Field(description="how to read the figure")
    csv: str = Field(description="address of the data")
    svg: str = Field(description="address of the drawing")


class MissingFigure(Answer):
    """A figure that cannot be drawn."""

    name: str = Field(examples=["loss_reference"])
    title: str = Field(examples=["Loss against the reference"])
    needs: str = Field(examples=["at least one measured trial whose trainer reports losses"])


class FigureList(Answer):
    """The figures of a study in the order in which they are shown."""

    figures: list[FigureDocument]
    missing: list[MissingFigure]


def _as_file(media: str) -> dict[int | str, dict[str, Any]]:
    documented = responses(404, model=FigureList)
    documented[200] = {
        "description": "The file",
        "content": {media: {"schema": {"type": "string"}}},
    }
    return documented


@router.get("/studies/{study_id}/figures", responses=responses(404, model=FigureList))
async def figures(study_id: StudyId, service: TheService, caller: Reader) -> Response:
    """List the figures of a study with their texts and addresses. For figures that cannot be drawn, it lists what is missing."""
    drawn_figures = await run_in_threadpool(service.views.current_figures, study_id)
    url = f"/api/v1/studies/{study_id}/figures"
    documents = [
        {
            "name": figure.name,
            "title": figure.title,
            "shows": figure.shows,
            "how_to_read": figure.how_to_read,
            "csv": f"{url}/{figure.name}.csv",
            "svg": f"{url}/{figure.name}.svg",
        }
        for figure in drawn_figures
    ]
    names = {figure.name for figure in drawn_figures}
    missing = [
        {"name": name, "title": title, "needs": needs}
        for name, (title, needs) in MISSING.items()
        if name not in names
    ]
    return StrictJSONResponse({"figures": documents, "missing": missing})


@router.get(
    "/studies/{study_id}/figures/{name}.csv", responses=_as_file(CSV), response_class=Response
)
async def figure_data(
    study_id: StudyId, name: FigureName, service: TheService, caller: Reader
) -> Response:
    """Read the data of a figure as CSV, in SI units, with a header row."""
    figure = await _figure(service, study_id, name)
    return Response(figure.csv(), media_type=f"{CSV}; charset=utf-8")


@router.get(
    "/studies/{study_id}/figures/{name}.svg", responses=_as_file(SVG), response_class=Response
)
async def figure_drawing(
    study_id: StudyId, name: FigureName, service: TheService, caller: Reader
) -> Response:
    """Read a figure as a self-contained SVG, in light colors."""
    figure = await _figure(service, study_id, name)
    return Response(
        figure.picture(), media_type=SVG, headers={"Content-Security-Policy": SVG_POLICY}
    )


async def _figure(service: ServiceState, study_id: str, name: str) -> Figure:
    """Return the figure with that name. Raises `NotFoundError`."""
    figure = await run_in_threadpool(service.views.figure, study_id, name)
    if figure is None:
        names = ", ".join(
            f.name for f in await run_in_threadpool(service.views.current_figures, study_id)
        )
        needs = f"; the figure needs {MISSING[name][1]}" if name in MISSING else ""
        raise NotFoundError(
            f"study {study_id} has no figure {name!r}{needs}",
            remedy=f"this study's figures: {names or 'none yet'}",
        )
    return figure
