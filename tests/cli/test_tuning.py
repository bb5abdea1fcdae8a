"""`tune` and what can be asked afterwards: the documents hold the keys of the public contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from autotune.cli.study_text import EVENT_TEXTS, event_line
from autotune.cost.traits import POST_TRAINERS
from autotune.report.target_text import target_sentences
from autotune.study.controller import commands
from autotune.trainers import python_line, trainer_names
from autotune_workers.runners.simulated import SimulatedRunner
from tests.matrix import sampled
from tests.space.test_launchable import POST_TRAINING


def test_tune_answers_with_study_best_baseline_and_speedup(run, write):
    done = run("tune", write(), "--json")
    assert done.code == 0, done.err
    document = done.document
    study = document["study"]
    assert study["status"] == "COMPLETED"
    assert study["id"]
    assert study["name"] == "small"
    assert sum(study["trials"].values()) >= 5
    for key in ("config", "measurement", "reward", "estimate"):
        assert document["best"][key], key
        assert document["baseline"][key], key
    assert document["speedup"] > 1.0


@pytest.mark.thorough
def test_later_commands_agree_with_tune(run, write):
    tuned = run("tune", write(), "--json").document
    study = tuned["study"]["id"]
    for command in (("status", study), ("best", study), ("best", "small"), ("best", study[:6])):
        document = run(*command, "--json").document
        assert document["best"]["config"] == tuned["best"]["config"]
        assert document["study"]["id"] == study
        assert document["speedup"] == tuned["speedup"]
    assert run("list", "--json").document["studies"][0]["speedup"] == tuned["speedup"]
    assert f"{tuned['speedup']:.2f}x" in run("list").out
    top = run("best", study, "--top", 3, "--json").document["configs"]
    assert 1 <= len(top) <= 3
    assert top[0]["config"] == tuned["best"]["config"]


@pytest.mark.thorough
def test_top_limits_the_configs_of_a_target(run, write):
    run("tune", write(target="a100-40gb-2x8", searcher="bayesian"), "--max-trials", 1)
    ranks = [
        row["rank"]
        for row in run("best", "small", "--top", 2, "--json").document["target"]["configs"]
    ]
    assert ranks == [1, 2]
    whole = run("best", "small", "--json").document["target"]
    assert len(whole["configs"]) > 2
    shown, everything = (
        " ".join(run("best", "small", "--top", n).out.split()) for n in (2, len(whole["configs"]))
    )
    for sentence in target_sentences(whole):
        assert " ".join(sentence.split()) in shown
        assert " ".join(sentence.split()) in everything
    assert len(shown) < len(everything)


@pytest.mark.thorough
def test_best_across_history_by_model_and_cluster(run, write):
    run("tune", write())
    asked = ("best", "--model", "gpt2-small", "--cluster", "a100-40gb-1x8", "--json")
    # simulated results are no results unless they are asked for
    assert run(*asked).document["source"] == "cost_model"
    found = run(*asked, "--runner", "simulated")
    assert found.code == 0
    assert found.document["source"] == "measured"
    assert found.document["best"]["measurement"]["tokens_per_s"] > 0
    none = run("best", "--model", "llama-8b", "--json")
    assert none.code == 1
    assert none.document["best"] is None


def test_the_terminal_shows_trials_winner_and_next_commands(run, write):
    done = run("tune", write())
    assert done.code == 0
    assert "the baseline" in done.out
    assert "autotune export" in done.err
    assert "trial 0" in done.err


def test_explain_rerank_pareto_report_compare_logs(run, write, tmp_path):
    study = run("tune", write(), "--json").document["study"]["id"]
    assert "baseline" in run("explain", study).out
    assert run("explain", study, 1, "--json").document["trial"]["number"] == 1
    assert run("best", study, "--stability-weight", 1.0, "--json").document["configs"]
    front = run("best", study, "--pareto", "--json").document["configs"]
    assert all(
        set(row["merits"]) >= {"tokens_per_s", "stability", "memory_headroom"} for row in front
    )
    shown = run("best", study, "--pareto").out
    assert "per million tokens" in shown
    assert "$" in shown, "the price of the catalog"
    parts = run("explain", study).out
    for words in (
        "memory headroom",
        "steady step time",
        "reward = 0.8 x throughput + 0.2 x stability",
        "runner-up (",
    ):
        assert words in parts
    again = run("best", study, "--metric", "cost", "--stability-weight", 0.5, "--json").document
    assert again["objective"] == {"metric": "cost", "stability_weight": 0.5}
    assert again["best"] == {
        k: v for k, v in again["configs"][0].items() if k not in ("rank", "note")
    }
    assert run("best", study, "--metric", "fastness").code == 2
    assert run("report", study, "-o", tmp_path / "out" / "report.html").code == 0
    page = (tmp_path / "out" / "report.html").read_text()
    for said in ("<svg", "Pareto front", "no spikes of the gradient norm"):
        assert said in page
    markdown = run("report", study, "--format", "markdown").out
    assert markdown.startswith("### small: ")
    assert (
        run("report", study, "-o", tmp_path / "out" / "report.md", "--json")
        .document["wrote"]
        .endswith("report.md")
    )
    assert (tmp_path / "out" / "report.md").read_text() == markdown
    printed = run("report", study, "--json").document
    assert (printed["format"], printed["report"]) == ("html", page)
    assert "small" in run("compare", study, study).out
    assert len(run("compare", study, study, "--json").document["studies"]) == 2
    output = run("logs", study, "--verbose").out
    assert "submitted" in output
    assert "decision 3: attempt 1 of trial 0 ended" in output
    assert "study.decided" not in output
    assert run("logs", study, 0).code == 0
    assert run("logs", study, 99).code == 2


def test_each_event_that_causes_a_decision_has_a_text():
    assert set(EVENT_TEXTS) == {
        "ControllerBegan",
        *(event.__name__ for event in get_args(commands.Event)),
    }
    began = {"kind": "controller.began", "data": {"capacity": 4}}
    assert event_line(began) == "controller started; the runner has room for 4 ranks"
    began["data"] = {"capacity": SimulatedRunner().capacity}
    assert event_line(began) == "controller started"
    proposed = {"kind": "trial.asked", "data": {"number": 3, "config": "tp2 mb1"}}
    assert event_line(proposed) == "trial 3 proposed: tp2 mb1"
    ended = {
        "number": 4,
        "status": "STOPPED",
        "reason": "cannot win",
        "tokens_per_s_per_gpu": 1520.0,
    }
    expected = "trial 4 ended: stopped, 1.52k tokens/s per GPU, cannot win"
    assert event_line({"kind": "trial.ended", "data": ended}) == expected
    ended["tokens_per_s"] = 6080.0
    expected = "trial 4 ended: stopped, 6.08k tokens/s, cannot win"
    assert event_line({"kind": "trial.ended", "data": ended}) == expected
    ended = {
        "number": 5,
        "status": "FAILED",
        "failure": {"kind": "OUT_OF_MEMORY", "message": "rank 3 needs 2 GiB"},
    }
    expected = "trial 5 ended: failed, out of memory: rank 3 needs 2 GiB"
    assert event_line({"kind": "trial.ended", "data": ended}) == expected
    asked = {
        "kind": "study.decided",
        "data": {"decision": 7, "cause": {"event": "InterruptAsked", "reason": "Ctrl-C"}},
    }
    assert event_line(asked) == "decision 7: the controller was interrupted (Ctrl-C)"


def test_export_writes_a_launch(run, refusal, write, tmp_path):
    study = run("tune", write(), "--json").document["study"]["id"]
    done = run("export", study, "--to", "megatron", "-o", tmp_path / "launch")
    assert done.code == 0, done.err
    assert "torchrun" in done.out
    assert (
        "the launch runs only 50 steps, like a trial; for the full run, export again with `--option steps=N`"
        in done.err
    )
    assert "note: the speed was simulated, and may differ in a real run\n" in done.err
    whole = run("export", study, "--to", "megatron", "--option", "steps=7000")
    assert "--train-iters=7000" in whole.out.replace("--train-iters 7000", "--train-iters=7000")
    assert "as a trial may" not in whole.err
    assert run("export", study, "--json").document["trainer"] == "native", "the study's own trainer"
    assert "nobody" in refusal("export", study, "--to", "nobody")


def test_an_impossible_export_suggests_the_option_as_typed(run, refusal, write):
    path = write(space={"micro_batch_size": [1, 2], "precision": ["bf16"], "compile": [True]})
    study = run("tune", path, "--json").document["study"]["id"]
    output = refusal("export", study, "--to", "megatron")
    assert "export with --option nearest=true to use the nearest values" in output
    assert run("export", study, "--to", "megatron", "--option", "nearest=true").code == 0
    assert "set --option argv=VALUE" in refusal("export", study, "--to", "command")


@pytest.mark.thorough
def test_the_same_command_after_the_end_starts_a_new_study_and_overrides_apply(run, write):
    path = write()
    first = run("tune", path, "--json").document["study"]["id"]
    second = run(
        "tune", path, "--json", "--max-trials", 1, "--searcher", "random", "--seed", 3
    ).document["study"]
    assert second["id"] != first
    assert second["searcher"] == "random"
    assert [s["id"] for s in run("list", "--json").document["studies"]] == [second["id"], first]


def test_help_loads_no_heavy_libraries():
    code = (
        "import sys; from autotune import cli; code = cli.run(['--help']); "
        "heavy = {'torch', 'ray', 'optuna', 'sqlalchemy', 'fastapi', 'scipy', 'pydantic', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("plan", "tune", "estimate", "calibrate", "submit", "best", "export", "doctor"):
        assert f"  {command} " in done.stdout


def test_a_plan_loads_neither_scipy_nor_torch_nor_ray(write):
    code = (
        "import sys; from autotune import cli; code = cli.run(['plan', sys.argv[1], '--json']); "
        "heavy = {'torch', 'ray', 'scipy'} & set(sys.modules); sys.exit(f'imported {heavy}' if heavy else code)"
    )
    command = [sys.executable, "-c", code, str(write())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version(output_of):
    assert output_of("--version").startswith("autotune 0.")


@pytest.mark.thorough
@pytest.mark.parametrize("cluster", sampled(["h100-sxm-1x8", "h100-sxm-2x8"], ["h100-sxm-2x8"]))
@pytest.mark.parametrize(
    "name",
    sampled([name for name in trainer_names() if not python_line(name)], ["megatron", "native"]),
)
def test_the_printed_export_command_has_the_studys_trainer_and_works(run, write, name, cluster):
    argv = [
        "train",
        *(
            f"--{knob}={{{knob}}}"
            for knob in ("micro_batch_size", "accumulation_steps", "zero_stage")
        ),
    ]
    trainer = {"kind": "command", "argv": argv} if name == "command" else name
    space = {"micro_batch_size": [1, 2], "zero_stage": [0, 1, 3], "precision": ["bf16"]}
    asked: dict[str, Any] = POST_TRAINING if name in POST_TRAINERS else {}
    spec = write(
        trainer=trainer,
        cluster=cluster,
        model="llama-1b",
        space=space,
        budget={"max_trials": 2},
        **asked,
    )
    done = run("tune", spec)
    pasted = next(line for line in done.err.splitlines() if "autotune export" in line).split()[2:]
    assert pasted[pasted.index("--to") + 1] == name
    exported = run(*pasted)
    assert exported.code == 0, exported.err
    assert "launch/launch.json" in exported.err


@pytest.mark.thorough
def test_the_next_step_of_a_study_with_a_python_loop_is_a_line_of_python(run, refusal, write):
    space = {"micro_batch_size": [1, 2], "zero_stage": [2, 3], "precision": ["bf16"]}
    spec = write(
        name="loop",
        trainer="ray_train",
        space=space,
        knobs={"prefetch": [0, 2]},
        budget={"max_trials": 2},
    )
    line = "in Python: autotune.ray.with_config(trainer, result.best.config).fit()"
    done = run("tune", spec)
    assert done.code == 0, done.err
    assert line in done.err
    assert "autotune export" not in done.err
    assert f"next: {line}" in run("best", "loop").err
    assert (
        "start the config in that program: autotune.ray.with_config(trainer, result.best.config).fit()"
        in refusal("export", "loop", "--to", "ray_train")
    )
    assert run("report", "loop", "-o", "page.html").code == 0
    assert f"# {line}" in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("runner", "sentence"),
    [
        ("local", "is started from Python, not by a command, so the local runner cannot run it"),
        ("ray", "is started from Python, not by a command, so the ray runner cannot run it"),
        ("ray_train", "call autotune.ray.tune_torch_trainer(trainer, space=...) from Python"),
    ],
)
def test_a_python_loop_is_rejected_before_a_runner_is_created(refusal, write, runner, sentence):
    assert sentence in refusal(
        "tune", write(trainer="ray_train", runner=runner, space={"micro_batch_size": [1, 2]})
    )
