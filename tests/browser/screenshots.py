"""Pictures of the web pages for README and documentation: a real service, and a real study whose
trials train on this machine's processors.

    make screenshots                                            about ten minutes
    python -m tests.browser.screenshots docs/images/pages DATA

DATA is the folder of the service's store. A study that has ended there is shown again, not run
again; then there is no picture of a running one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from autotune import assets
from autotune.client import Client
from tests.browser.chromium import chromium, go, visit
from tests.service.running import until
from tests.service.served import served

MOST_BYTES = 220_000
"""of a picture"""
TRIALS_SEEN = 6
"""trials that have ended when the running study is shown"""
WIDE, PHONE = (1400, 880), (390, 780)
"""width and height of the window, pixels"""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One page as it is shown."""

    name: str
    path: str
    """{study}, {best}, {second}: id of the study, numbers of its two best trials"""
    window: tuple[int, int] = WIDE
    scheme: Literal["light", "dark"] = "light"
    at: str = ""
    """heading that stands at the top; empty: the page's beginning"""
    ready: str = "h1"
    """what must be there before the picture is taken"""


PLAN = "/plan?model=qwen3-8b&cluster=h200-sxm-4x8&seq_len=8192&batch=512&trainer="
RUNNING = Picture(
    name="study-running", path="/studies/{study}", at="Running now", ready="ul.running"
)
ENDED = (
    Picture(name="studies", path="/studies", ready="table"),
    Picture(name="studies-phone", path="/studies", window=PHONE, ready="table"),
    Picture(name="plan", path=PLAN, ready="table"),
    Picture(name="plan-phone", path=PLAN, window=PHONE, ready="table"),
    Picture(name="study", path="/studies/{study}"),
    Picture(name="study-dark", path="/studies/{study}", scheme="dark"),
    Picture(name="study-map", path="/studies/{study}", at="Figures"),
    Picture(name="study-trials", path="/studies/{study}", at="Trials"),
    Picture(name="study-phone", path="/studies/{study}", window=PHONE),
    Picture(name="figures-phone", path="/studies/{study}", window=PHONE, at="Figures"),
    Picture(name="trial", path="/studies/{study}/trials/{best}"),
    Picture(name="trial-figures", path="/studies/{study}/trials/{best}", at="Figures"),
    Picture(name="compare", path="/studies/{study}/compare?trial={best}&trial={second}"),
    Picture(name="export", path="/studies/{study}/export?trainer=native&on=slurm"),
    Picture(name="submit", path="/submit?from={study}", ready=".preview table"),
)


def take(browser: Any, url: str, picture: Picture, values: Mapping[str, Any], folder: Path) -> None:
    """Writes one picture. Raises `ValueError` when it is too large."""
    width, height = picture.window
    with visit(
        browser, url, viewport={"width": width, "height": height}, color_scheme=picture.scheme
    ) as seen:
        page = seen.page
        go(page, picture.path.format(**values))
        page.locator(picture.ready).first.wait_for()
        if picture.at:
            heading = page.get_by_role("heading", name=picture.at, exact=True).first
            heading.evaluate("(it) => scrollTo(0, it.getBoundingClientRect().top + scrollY - 12)")
        target = folder / f"{picture.name}.png"
        size = len(page.screenshot(path=target, animations="disabled"))
    if size > MOST_BYTES:
        raise ValueError(
            f"a picture must have at most {MOST_BYTES:,} bytes, but {target} has {size:,}"
        )
    print(f"{target}: {size:,} bytes")


def main(folder: str, data: str) -> None:
    """Runs the study, unless it has ended in `data`, and writes all pictures into `folder`."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    spec = yaml.safe_load(
        (assets.search_spaces() / "studies" / "laptop.yaml").read_text(encoding="utf-8")
    )
    with chromium() as browser, served(Path(data)) as (_, url), Client(url) as client:
        study = client.submit(spec | {"runner": "local"}, idempotency_key="pictures")["study"]["id"]

        def ended() -> bool:
            return bool(client.status(study)["study"]["status"] in ("COMPLETED", "FAILED"))

        if not ended():
            until(
                lambda: ended() or _seen(client.status(study)["study"]["trials"]), deadline_s=1800
            )
            take(browser, url, RUNNING, {"study": study}, target)
        client.wait(study, timeout_s=3600)
        best, second = (ranked["number"] for ranked in client.best(study, top=2)["configs"])
        values = {"study": study, "best": best, "second": second}
        for picture in ENDED:
            take(browser, url, picture, values, target)


def _seen(trials: Mapping[str, int]) -> bool:
    """Whether enough trials have ended, and one runs."""
    return bool(trials.get("RUNNING")) and sum(trials.values()) > TRIALS_SEEN


if __name__ == "__main__":
    main(*sys.argv[1:])
