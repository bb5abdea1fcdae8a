"""`autotune fit`: verdict, tables, JSON, page, exit codes. The dry runs are those of a fake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune import api
from autotune.errors import DryRunError, MissingExtraError
from autotune.plan import dry_runs as plan_dry_runs
from autotune.plan.fit import dry_runs
from tests.dry_run_fake import FakeDryRunner


def test_the_first_line_is_the_answer(run, write, fake):
    done = run("fit", write(), "--config", "tp=2,micro_batch_size=2")
    assert done.code == 0, done.err
    first, *rest = done.out.splitlines()
    assert first.startswith("yes, it fits: ")
    for words in ("allocated at the peak", "reserved (90%:", "GiB of it usable", "P(OOM) below 1%"):
        assert words in first
    assert "gpt2-small" in rest[0]
    assert "dp_cp" not in done.out
    for title in (
        "Peak of allocated memory",
        "Dry run and formulas",
        "Modules with the most memory",
        "Traffic of a rank",
    ):
        assert title in done.out
    assert "dry run 1 of 1" in done.err
    assert fake.asked == [0]


def test_three_ranks_of_a_pipeline_are_run_and_the_highest_peak_decides(run, write, fake):
    config = "tp=1,pp=4,micro_batch_size=2"
    document = run(
        "fit", write(space={"pp": [4], "micro_batch_size": [2]}), "--config", config, "--json"
    ).document
    (found,) = document["configs"]
    assert fake.asked == [0, 2, 3]
    peaks = [one["peak"]["total_bytes"] for one in found["runs"]]
    assert found["allocated_bytes"] == max(peaks) == peaks[0]
    assert found["reserved_low_bytes"] < found["reserved_bytes"] < found["reserved_high_bytes"]
    assert found["basis"] == "dry run"
    assert found["over_six_n"] == pytest.approx(1.0, rel=0.01)
    assert (
        sum(row["dry_run_bytes"] for row in found["beside_cost_model"]) == found["allocated_bytes"]
    )


def test_a_model_that_does_not_fit_exits_with_1(run, write, fake):
    spec = write(model="llama-70b", workload={"seq_len": 4096, "global_batch_size": 64})
    done = run("fit", spec, "--config", "tp=8,micro_batch_size=8")
    assert done.code == 1
    assert done.out.startswith("no, it does not fit: ")
    assert "P(OOM) above 99%" in done.out


def test_without_a_config_the_best_of_the_plan_is_checked(run, write, fake):
    spec = write()
    (best,) = run("plan", spec, "--top", 1, "--json").document["configs"]
    (found,) = run("fit", spec, "--json").document["configs"]
    assert found["config"] == best["config"]
    done = run("fit", spec, "--top", 3)
    assert [f"config {n} of 3, dry run 1 of " in done.err for n in (1, 2, 3)] == [True] * 3
    assert done.out.startswith("3 of 3 configs are expected to fit")
    assert len(run("fit", spec, "--top", 3, "--json").document["configs"]) == 3


def test_if_nothing_is_expected_to_fit_the_nearest_miss_is_checked(run, write, fake):
    done = run(
        "fit", write(model="llama-70b", space={"tp": [8], "micro_batch_size": [1]}), "--json"
    )
    assert done.code == 1
    (found,) = done.document["configs"]
    assert found["config"]["tp"] == 8


def test_without_a_dry_run_the_reason_comes_first_and_the_answer_of_the_formulas_is_marked(
    run, write, fake
):
    fake.error = DryRunError(
        "the operator my::gather (model.py, line 12) has no fake kernel",
        remedy="register one with torch.library",
    )
    done = run("fit", write(), "--config", "tp=2,micro_batch_size=2")
    assert done.code == 1, "the question was about the model's own code, and no answer came"
    problem, remedy, formulas, *_ = done.out.splitlines()
    assert problem == f"a dry run was impossible: {fake.error.message}"
    assert remedy == "  register one with torch.library"
    assert formulas.startswith(
        "according to the cost model's formulas (the model's code was not run), it should fit: "
    )
    again = run("fit", write(), "--config", "tp=2,micro_batch_size=2", "--json")
    (found,) = again.document["configs"]
    assert again.code == 1
    assert (found["basis"], found["allocated_bytes"], found["runs"]) == ("cost model", None, [])
    assert (found["fits"], found["verdict"]) == (None, "fits")
    assert found["reserved_bytes"] == pytest.approx(found["estimate"]["peak_memory_bytes"])
    assert found["remedy"] == "register one with torch.library"


def test_configs_without_a_dry_run_are_counted_separately(run, write, fake, tmp_path):
    fake.error = DryRunError("my_model.py:7 raised", remedy="correct it")
    done = run("fit", write(), "--top", 3, "-o", tmp_path / "fit.html")
    assert done.code == 1
    assert done.out.startswith(
        "no dry run was possible for any of 3 configs: my_model.py:7 raised\n"
    )
    assert done.out.count("no dry run (formulas: fits)") == 3
    page = (tmp_path / "fit.html").read_text()
    assert page.index("a dry run was impossible") < page.index("code was not run")


def test_a_requested_profile_that_is_impossible_is_a_failure(run, write, fake, monkeypatch):
    failing = FakeDryRunner(error=DryRunError("my_model.py:7 raised"))
    monkeypatch.setattr(plan_dry_runs, "dry_runner", lambda: failing)
    done = run("fit", write(), "--config", "tp=2,micro_batch_size=2", "--profile")
    assert done.out.startswith("yes, it fits: ")
    assert "a dry run was impossible: " in done.out
    assert done.code == 1


def test_guesses_limits_and_omissions_are_printed(run, write, fake):
    fake.guesses = ("routing of layers.0.moe is taken to be balanced",)
    words = ("--config", "tp=2,micro_batch_size=2", "--max-wall-s", 7, "--max-memory-gib", 2)
    done = run("fit", write(trainer="megatron"), *words)
    assert "assumed: routing of layers.0.moe is taken to be balanced" in done.out
    assert done.out.startswith(
        "according to the cost model of megatron (the dry run below executes the native trainer's loop), "
    )
    assert "megatron keeps different tensors" in done.out
    assert (fake.limits[0].wall_s, fake.limits[0].memory_bytes) == (7, 2 * 2**30)


def test_a_trainer_without_its_own_dry_run_has_the_verdict_of_estimate(run, write, fake):
    """The dry run of another trainer's loop says how that one uses memory; it never says no for
    this one."""
    spec = write(trainer="torchtitan", model="llama-8b", cluster="h100-sxm-1x8", workload={"seq_len": 8192, "global_batch_size": 16})  # fmt: skip
    config = "tp1 pp1 dp8 mb2 acc1 bf16 selective-recompute zero3 compile"
    estimate = run("estimate", spec, "--config", config, "--json").document["estimate"]
    done = run("fit", spec, "--config", config, "--json")
    (found,) = done.document["configs"]
    assert done.code == 0
    assert (found["basis"], found["played"], found["verdict"], found["fits"]) == (
        "cost model",
        "native",
        "fits",
        True,
    )
    assert found["oom_probability"] == pytest.approx(estimate["oom_probability"])
    assert found["reserved_bytes"] == pytest.approx(estimate["peak_memory_bytes"])
    (activations,) = [row for row in found["beside_cost_model"] if row["name"] == "activations"]
    assert "recomputes all operators except attention" in activations["why"]
    text = run("fit", spec, "--config", config).out
    assert "native, dry run" in text
    assert "recomputes all operators except attention" in text


def test_limits_apply_to_building_your_own_model(run, write, fake, monkeypatch):
    monkeypatch.setattr(api, "dry_runner", lambda: fake)
    run(
        "fit",
        write(model={"module": "my_model:build"}),
        "--config",
        "tp=1,micro_batch_size=2",
        "--max-wall-s",
        7,
    )
    assert [limits.wall_s for limits in fake.limits] == [7, 7]


def test_a_builder_without_a_function_is_reported_with_the_format(refusal, write, fake):
    for name in ("my_model", "my_model:", "my model:build"):
        assert "model.module: must be MODULE:FUNCTION or PACKAGE.MODULE:FUNCTION" in refusal(
            "fit", write(model={"module": name})
        )


def test_the_page_stands_alone_and_escapes(run, write, fake, tmp_path):
    fake.guesses = ("<script>alert(1)</script>",)
    page = tmp_path / "fit.html"
    assert (
        f"wrote {page}"
        in run("fit", write(), "--config", "pp=2,micro_batch_size=2", "-o", page).err
    )
    text = page.read_text()
    assert text.count("<svg") == 2  # one for each rank of the pipeline
    assert "yes, it fits" in text
    assert "<script>" not in text
    assert "default-src 'none'" in text


def test_bad_input(run, write, fake):
    assert run("fit", write(), "--config", "tp=5").code == 2
    assert run("fit", write(), "--config", "tp=2", "--top", 2).code == 2
    assert run("fit", write(), "-o", "fit.png").code == 2
    assert fake.asked == []


def test_without_torch_the_extra_is_suggested(refusal, write, monkeypatch):
    def missing() -> FakeDryRunner:
        raise MissingExtraError(
            "the dry runner 'local' needs torch",
            remedy="install it with: pip install 'autotune-parallel[native]'",
        )

    monkeypatch.setattr(dry_runs, "dry_runner", missing)
    assert "autotune-parallel[native]" in refusal("fit", write())


def test_the_keys_in_the_documentation_exist(run, write, fake):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fit.md").read_text(encoding="utf-8")
    paragraph = page.split("With `--json` the document has `configs`", 1)[1].split("\n\n", 1)[0]
    (found,) = run("fit", write(), "--config", "pp=2,micro_batch_size=2", "--json").document[
        "configs"
    ]
    names = re.findall(r"`(\w+)`", paragraph)
    assert len(names) > 15
    assert set(names) <= set(found) | set(found["runs"][0])
