"""From an empty machine to a study that is understood and exported, by the pages alone: two people
with tokens of their own, trials that really train.

On this machine's processes, and on Ray, where the study's page also leads to its job in the Ray
dashboard, and that back to the page.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from autotune import cli
from autotune.service.supervise.ray_cluster import own_token
from tests.browser.chromium import Visit, follow, go, visit
from tests.browser.test_buttons import buttons_of, log_in
from tests.service.served import served

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SPEC = """\
name: first
model: nano-gpt
cluster: local
workload: {seq_len: 32, global_batch_size: 8}
space: {world_sizes: [1, 2], tp: [1], pp: [1], dp: [1, 2], micro_batch_size: [1, 4, 8], precision: [fp32]}
budget: {max_trials: 3, min_gain: 0}
measure: {warmup_steps: 1, min_steps: 3, max_steps: 4, finalists: 0}
searcher: cost_ranked
runner: {runner}
"""


def token(capsys: pytest.CaptureFixture[str], folder: Path, owner: str, scope: str) -> str:
    """A token as `autotune token create` prints it."""
    argv = [
        "token",
        "create",
        "--owner",
        owner,
        "--scope",
        scope,
        "--store",
        str(folder / "results.db"),
        "--json",
    ]
    assert cli.run(argv) == 0
    return str(json.loads(capsys.readouterr().out)["token"])


def hosts(seen: Visit) -> set[str]:
    """Of all requests."""
    return {
        urlsplit(address).netloc for address in seen.requests if not address.startswith("data:")
    }


def check_alone(seen: Visit, url: str) -> None:
    """The console is silent and every request went to the service."""
    assert seen.complaints == []
    assert hosts(seen) == {urlsplit(url).netloc}


def check_job_and_back(page: Any, study: str) -> None:
    """The link on the study's page opens its job in the Ray dashboard, which asks for the cluster's
    token; the job's metadata has the page's address."""
    go(page, study)
    assert page.get_by_text("Where the ranks ran").count() == 0, "there is only one node"
    link = page.get_by_text("Ray job").get_by_role("link")
    job = link.inner_text()
    link.click()
    page.get_by_label("Authentication Token", exact=True).fill(own_token()[1])
    page.get_by_role("button", name="Submit").click()
    metadata = page.get_by_text('"autotune_study"').first.inner_text()
    assert page.url.endswith(f"/jobs/{job}")
    go(page, json.loads(metadata)["url"])
    assert page.url == study
    page.locator("h1", has_text="first").wait_for()


@pytest.mark.parametrize("runner", ["local", "ray"])
def test_two_people_and_a_study_of_real_trials(
    browser: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    runner: str,
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    ann, bob = (token(capsys, tmp_path, *who) for who in (("ann", "submit"), ("bob", "read")))
    with (
        served(tmp_path, "--require-token", "--runner", runner) as (_, url),
        visit(browser, url) as hers,
        visit(browser, url, color_scheme="dark") as his,
    ):
        page, other = hers.page, his.page
        log_in(hers, ann)
        assert "No studies yet." in page.inner_text("main")
        page.locator("#content").get_by_role("link", name="New study").click()
        page.get_by_label("Spec, in YAML").fill(SPEC.replace("{runner}", runner))
        page.get_by_text("first: nano-gpt on cpu-1x").wait_for()  # the preview
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("The study is submitted.").wait_for()
        page.evaluate("window.kept = true")

        log_in(his, bob)
        follow(other, other.get_by_role("link", name="first"))
        # `Show` filters the trials, once there are some
        assert buttons_of(other) - {"Show"} == {"Log out"}
        for seen in (page, other):
            seen.locator("h1 .status.COMPLETED").wait_for(timeout=300_000)
        assert page.evaluate("window.kept")  # it followed the study without a reload
        assert "Speedup over the baseline" in page.inner_text(".answer")

        best = other.locator("tr.won a").first
        number = best.inner_text()
        follow(other, best)
        other.get_by_role("heading", name=f"Trial {number} ").wait_for()
        assert other.locator("figure svg").count() >= 3
        other.get_by_role("link", name="Files, other trainers, schedulers").click()
        other.get_by_label("Trainer").select_option("megatron")
        other.get_by_role("button", name="Show").click()
        with other.expect_download() as got:
            other.get_by_role("link", name="Download all files (.zip)").click()
        assert (
            "launch/launch.sh"
            in zipfile.ZipFile(io.BytesIO(got.value.path().read_bytes())).namelist()
        )

        follow(page, page.get_by_role("link", name="Report with figures"))
        assert page.locator("figure svg").count() >= 8
        check_alone(hers, url)
        check_alone(his, url)

        address = f"{url}/studies/{urlsplit(other.url).path.split('/')[2]}"
        assert (
            other.request.post(
                f"{address}/act", form={"action": "cancel"}, headers={"Origin": url}
            ).status
            == 403
        )
        if runner == "ray":
            check_job_and_back(page, address)
            assert {host.split(":")[0] for host in hosts(hers)} == {"127.0.0.1"}
