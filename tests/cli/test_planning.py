"""plan and estimate: rankings, parts, reasons, other sizes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from autotune.api import load_study
from autotune.detect import local_cluster
from autotune.errors import AutotuneError, SpecError
from autotune.plan.predictions import plan_of
from autotune.report.cluster_table import format_usd
from autotune.report.terminal import plan_table
from autotune.schema.space_models import usual_space
from autotune.settings import data_folder
from autotune.spec.texts.as_text import two_digits
from autotune.store import open_to_read
from tests.cli.conftest import SPEC


def test_plan_ranks_feasible_configs(run, write):
    document = run("plan", write(), "--json", "--top", 5).document
    assert [row["rank"] for row in document["configs"]] == [1, 2, 3, 4, 5]
    assert document["feasible"] >= 5
    assert all(count > 0 for count in document["infeasible"].values())
    first = document["configs"][0]["estimate"]
    assert first["step_time_s"] == pytest.approx(sum(first["time_parts_s"].values()))
    assert first["peak_memory_bytes"] == pytest.approx(sum(first["memory_parts_bytes"].values()))


def test_plan_shows_a_table_and_other_sizes(run, output_of, write):
    output = output_of("plan", write(), "--gpus", "8,16,12", "--tokens", "1e9")
    assert "valid configs that fit" in output
    assert "whole number of nodes" in output
    document = run("plan", write(), "--gpus", "8,16", "--tokens", "1e9", "--json").document
    assert [row["num_gpus"] for row in document["what_if"]] == [8, 16]
    assert document["what_if"][1]["days"] < document["what_if"][0]["days"]


def test_plan_compares_clusters(run, refusal, output_of, write):
    output = output_of(
        "plan", write(), "--clusters", "h100-sxm,b200-sxm-1x8,v100-32gb", "--tokens", "1e9"
    )
    assert "b200-sxm-1x8" in output
    assert "fastest: b200-sxm-1x8" in output
    document = run(
        "plan", write(), "--clusters", "h100-sxm, b200-sxm-1x8", "--tokens", "1e9", "--json"
    ).document
    h100, b200 = document["clusters"]
    assert (h100["cluster"], b200["num_gpus"]) == ("h100-sxm-1x8", 8)
    assert b200["bill"]["days"] < h100["bill"]["days"]
    assert h100["tokens_per_s_low"] < h100["estimate"]["tokens_per_s"] < h100["tokens_per_s_high"]
    asked = "--model gpt2-medium --seq-len 1024 --batch 64 --clusters h100-sxm-1x8,a100-80gb-1x8"
    assert "on h100-sxm-1x8," in output_of("plan", *asked.split())  # without --cluster, the first
    found = run("plan", *asked.split(), "--json").document
    assert [choice["cluster"] for choice in found["clusters"]] == ["h100-sxm-1x8", "a100-80gb-1x8"]
    assert "there is no GPU 'h1000'" in refusal("plan", write(), "--clusters", "h1000")
    assert "--clusters" in refusal("plan", write(), "--tokens", "1e9")


def test_compared_clusters_can_be_sorted(run, refusal, write):
    def names(*options: object) -> list[str]:
        asked = "v100-32gb,h100-sxm,b200-sxm"
        done = run("plan", write(), "--clusters", asked, *options, "--json")
        return [choice["gpu"] for choice in done.document["clusters"]]

    assert names() == ["v100-32gb", "h100-sxm", "b200-sxm"]
    assert names("--sort", "speed") == ["b200-sxm", "h100-sxm", "v100-32gb"], "it has no bf16"
    by_cost = ("--tokens", "1e9", "--sort", "cost")
    bills = run("plan", write(), "--clusters", "b200-sxm,h100-sxm", *by_cost, "--json").document
    costs = [choice["bill"]["cost_usd"] for choice in bills["clusters"]]
    assert costs == sorted(costs)
    assert names(*by_cost)[-1] == "v100-32gb"
    assert "--sort cost works only with --clusters and --tokens" in refusal(
        "plan", write(), "--clusters", "h100-sxm", "--sort", "cost"
    )
    assert "--sort speed works only with --clusters" in refusal("plan", write(), "--sort", "speed")


def test_plan_shows_the_nearest_miss_if_nothing_fits(run, write):
    done = run("plan", write(model="llama-70b", space={"tp": [8], "micro_batch_size": [1]}))
    assert done.code == 1
    assert "nearest miss" in done.out
    document = run(
        "plan", write(model="llama-70b", space={"tp": [8], "micro_batch_size": [1]}), "--json"
    ).document
    assert document["feasible"] == 0
    assert document["nearest_miss"]["remedies"]


def test_estimate_by_parts_with_derived_degrees(run, write):
    done = run("estimate", write(), "--config", "tp=2,micro_batch_size=2", "--json")
    document = done.document
    assert document["legal"]
    assert document["config"]["dp"] == 4
    assert document["config"]["accumulation_steps"] == 8
    assert document["estimate"]["step_time_low_s"] < document["estimate"]["step_time_s"]
    assert document["source"]
    done = run("estimate", write(), "--config", "tp=2")
    assert "compute" in done.out
    assert "idle" not in done.out
    assert f"cost model: {document['source']}" in done.err
    assert "GPUs stay idle" in run("estimate", write(), "--config", "tp=2,pp=1,dp=1").out


def test_estimate_explains_why_a_config_is_invalid(run, refusal, write):
    assert "tp" in refusal("estimate", write(), "--config", "tp=5")
    assert "tp" in refusal("estimate", write(), "--config", "tq=5")
    assert run("estimate", write(), "--config", "tp=five").code == 2


def test_catalogs(run):
    assert "llama-405b" in {m["name"] for m in run("models", "--json").document["models"]}
    assert "bayesian" in {m["name"] for m in run("searchers", "--json").document["searchers"]}
    assert "laptop" in {m["name"] for m in run("spaces", "--json").document["spaces"]}
    assert "megatron" in {m["name"] for m in run("trainers", "--json").document["trainers"]}
    assert {"ray", "local", "simulated"} <= {
        m["name"] for m in run("runners", "--json").document["runners"]
    }
    assert "h100-sxm-16x8" in {m["name"] for m in run("clusters", "--json").document["clusters"]}
    assert "gpt2-xl" in run("models").out


def test_an_unsupported_precision_is_not_shown_as_zero(run):
    found = {c["name"]: c for c in run("clusters", "--json").document["clusters"]}
    assert found["v100-32gb-1x8"]["bf16_tflops"] is None
    assert found["v100-32gb-1x8"]["fp16_tflops"] == 125.0
    assert found["cpu-1x4"]["bf16_tflops"] == 0.03
    assert " 0.0 " not in run("clusters").out


def test_catalogs_describe_each_entry(run):
    spaces = {s["name"]: s for s in run("spaces", "--json").document["spaces"]}
    assert spaces["laptop"]["knobs"]["tp"] == [1, 2, 4]
    assert spaces["laptop"]["path"].endswith("laptop.yaml")
    assert "one GPU" in run("spaces").out
    for command in ("searchers", "runners"):
        summaries = [row["summary"] for row in run(command, "--json").document[command]]
        assert all(summaries)
        assert len(set(summaries)) == len(summaries)
    assert "124M" in run("models").out
    assert 124_439_808 in {m["parameters"] for m in run("models", "--json").document["models"]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command", ["knobs", "models", "clusters", "spaces", "searchers", "runners"]
)
def test_catalogs_fit_a_narrow_terminal(run, monkeypatch, command):
    names = [row["name"] for row in run(command, "--json").document[command]]
    for name in ("TTY_COMPATIBLE", "FORCE_COLOR", "NO_COLOR"):  # the second for rich 13
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLUMNS", "72")
    narrow = re.sub("\x1b\\[[0-9;]*m", "", run(command).out)
    assert "\t" not in narrow
    assert max(map(len, narrow.splitlines())) <= 72
    assert set(names) <= set(narrow.split())


@pytest.mark.parametrize(
    "command", ["knobs", "models", "clusters", "spaces", "searchers", "runners"]
)
def test_a_piped_table_is_one_line_for_each_row_with_tabs_and_no_padding(run, command):
    rows = run(command, "--json").document[command]
    head, *lines = run(command).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [row["name"] for row in rows]
    assert {line.count("\t") for line in (head, *lines)} == {head.count("\t")}
    for line in lines:
        assert all(cell == " ".join(cell.split()) for cell in line.split("\t"))


def test_doctor(run):
    done = run("doctor", "--json")
    assert done.document["ok"] is (done.code == 0)
    names = {check["name"] for check in done.document["checks"]}
    assert {"Python", "torch", "dry runs", "Ray", "results database", "disk"} <= names
    assert {
        c["status"] for c in done.document["checks"] if c["name"] == "Ray dashboard panels"
    } == {"hint"}


def test_doctor_checks_the_disk_of_the_store(monkeypatch, tmp_path):
    from autotune.cli.commands import doctor

    def looked_at(url):
        return doctor._disk(url).detail.rpartition(" at ")[2]

    assert (
        looked_at(f"sqlite:///{tmp_path}/results.db")
        == looked_at(str(tmp_path / "results.db"))
        == str(tmp_path)
    )
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "not" / "yet" / "results.db"))
    assert looked_at(None) == str(tmp_path)


def test_doctor_warns_if_torch_cannot_use_the_gpus(run, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (check,) = [c for c in run("doctor", "--json").document["checks"] if c["name"] == "GPUs"]
    assert check["status"] == "warning"
    assert "CUDA_VISIBLE_DEVICES=0 lists GPUs" in check["detail"]


@pytest.mark.parametrize(
    ("version", "within"),
    [
        ("2.13.0+cpu", True),
        ("2.13.9", True),
        ("2.12.1", False),
        ("2.14.0", False),
        ("3.0", False),
        ("2.9", False),
    ],
)
def test_doctor_checks_that_torch_supports_dry_runs(version, within):
    from autotune.cli.commands.doctor import _is_within, _torch_requirement

    bound = _torch_requirement()
    assert ">=" in bound
    assert _is_within(version, bound) is within


@pytest.mark.thorough
def test_maintenance_of_the_store(run, refusal, write, tmp_path):
    run("tune", write())
    assert run("store", "check", "--json").document["ok"]
    assert run("store", "backup", tmp_path / "copy.db").code == 0
    assert run("list", "--store", tmp_path / "copy.db", "--json").document["studies"]
    assert run("store", "export", tmp_path / "csv").code == 0
    assert (tmp_path / "csv" / "trials.csv").stat().st_size > 0
    assert run("store", "vacuum").code == 0
    for command in (
        ("check",),
        ("backup", tmp_path / "none.bak"),
        ("export", tmp_path / "none"),
        ("vacuum",),
    ):
        assert "there is no store at" in refusal("store", *command, "--store", tmp_path / "typo.db")
    assert not (tmp_path / "typo.db").exists()


READING = (
    "best s",
    "status s",
    "watch s",
    "logs s",
    "explain s",
    "export s --to megatron -o launch",
    "report s",
    "compare s t",
    "diagnose s",
    "recheck s",
    "note s",
    "tag s",
    "delete s",
    "pause s",
    "resume s",
    "stop s",
    "cancel s",
    "token list",
    "token revoke x",
    "token audit",
)


@pytest.mark.parametrize("command", READING)
def test_a_command_that_only_reads_or_acts_on_a_study_creates_no_store(
    refusal, tmp_path, command: str
):
    output = refusal(*command.split(), "--store", tmp_path / "typo.db")
    assert f"there is no store at {tmp_path / 'typo.db'}" in output
    assert not (tmp_path / "typo.db").exists()


@pytest.mark.parametrize(
    "command", ["list", "best", "best --model gpt2-medium --cluster h100-sxm-1x8"]
)
def test_a_missing_store_counts_as_empty_for_commands_across_studies(run, tmp_path, command: str):
    done = run(*command.split(), "--store", tmp_path / "typo.db", "--json")
    assert (
        f"there is no store at {tmp_path / 'typo.db'}, so its studies cannot be listed" in done.err
    )
    assert not (tmp_path / "typo.db").exists()
    assert done.document.get("studies", []) == []
    assert done.document.get("source", "cost_model") in ("cost_model", "none")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("plan SPEC", 0),
        ("estimate SPEC --config tp=1", 0),
        ("estimate SPEC --config tp=5", 2),
        ("fit SPEC --config tp=1", 0),
        ("check SPEC", 0),
        ("calibrate --cluster nosuch", 2),
        ("doctor", None),
    ],
)
def test_a_command_that_stores_nothing_creates_no_store(
    run, write, fake, tmp_path, command: str, code: int | None
):
    words = [write() if word == "SPEC" else word for word in command.split()]
    done = run(*words, "--store", tmp_path / "none.db")
    assert code in (done.code, None), done.err
    assert not (tmp_path / "none.db").exists()


def test_the_users_own_store_is_created_by_the_first_study(run, write, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("AUTOTUNE_STORE", str(data_folder() / "autotune.db"))
    assert run("list", "--json").document == {"studies": [], "next_offset": None}
    assert run("plan", write()).code == 0
    assert not data_folder().exists()
    assert run("tune", write()).code == 0
    assert data_folder().exists()


def test_doctor_reports_a_folder_in_which_no_store_can_be_created(run, tmp_path, monkeypatch):
    def of_store() -> dict[str, str]:
        done = run("doctor", "--store", tmp_path / "none.db", "--json")
        return next(c for c in done.document["checks"] if c["name"] == "results database")

    assert (of_store()["status"], of_store()["detail"]) == (
        "ok",
        f"there is no store at {tmp_path / 'none.db'}; the first study creates it",
    )
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert of_store()["status"] == "failed"
    assert of_store()["detail"].endswith(f"none.db, and {tmp_path} is not writable")
    assert of_store()["remedy"].startswith(f"make {tmp_path} writable")


def test_a_missing_store_is_created_by_commands_that_write(tmp_path):
    place = tmp_path / "first.db"
    with closing(open_to_read(place)) as seen:
        assert seen.studies() == []
        assert not place.exists()
        seen.save_profile("model", {"peak": 1})
        seen.save_calibration("here", "native", {"matmul": 2})
        assert seen.profile("model") == {"peak": 1}
    with closing(open_to_read(place)) as kept:
        assert kept.profile("model") == {"peak": 1}
        assert kept.calibration("here", "native") == {"matmul": 2}


@pytest.mark.parametrize("command", ["plan", "fit", "fit --profile", "check", "tune"])
def test_a_mistake_found_after_reading_has_its_line_in_every_command(
    refusal, write, fake, command: str
):
    path = write(space={"tp": [5]})
    line = path.read_text().splitlines().index("space:") + 1
    name, *options = command.split()
    assert f"{path}:{line}:1: space: no config" in refusal(name, path, *options, code=1)


def test_a_plan_for_another_cluster_notes_that_this_machine_cannot_run_it(run, write, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = run("plan", write(runner="ray"), "--verbose")
    assert done.code == 0
    assert (
        "`autotune tune` cannot run on this machine: runner: the cluster a100-40gb-1x8 has GPUs"
        in done.err
    )
    assert (
        "no GPU is visible"
        in run("plan", write(runner="local"), "--json").document["cannot_run_here"]
    )
    assert run("plan", write(), "--json").document["cannot_run_here"] == ""
    assert done.err.splitlines()[-1].startswith("the plan needs no GPU, but "), (
        "no next step that would fail"
    )
    assert run("plan", write(runner="ray")).err.splitlines()[-1].endswith("(--verbose says why)")


def test_a_plan_without_a_spec_has_no_note_about_this_machine(run):
    asked = [
        "--model",
        "gpt2-small",
        "--cluster",
        "a100-40gb-1x8",
        "--seq-len",
        "1024",
        "--batch",
        "64",
    ]
    done = run("plan", *asked)
    assert done.code == 0
    assert "on this machine" not in done.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("runner", "command"), [("simulated", "tune"), ({"kind": "local", "device": "cpu"}, "check")]
)
def test_the_next_step_of_a_plan_can_be_pasted(run, write, runner, command):
    path = write(runner=runner)
    assert run("plan", path).err.splitlines()[-1] == f"next: autotune {command} {path}"
    if command == "tune":
        assert run(command, path).code == 0


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"runner": "flux"}, 2, "there is no runner 'flux'"),
        ({"runner": {"kind": "local", "max_rank": 2}}, 2, "did you mean max_ranks"),
        ({"space": {"tp": [5]}}, 1, "num_attention_heads"),
    ],
)
def test_an_unknown_runner_and_an_empty_space_are_errors_of_a_plan(
    run, write, changes, code, words
):
    done = run("plan", write(**changes))
    assert (done.code, done.out) == (code, "")
    assert words in done.err


@pytest.mark.thorough
def test_a_command_that_runs_out_of_memory_prints_one_line(tmp_path: Path) -> None:
    large = {
        "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "micro_batch_size": [1, 2, 4, 8, 16, 32], "precision": ["bf16", "fp16", "tf32", "fp32"], "zero_stage": [0, 1, 2, 3],
        "recompute": ["none", "selective", "full"], "compile": [False, True], "sequence_parallel": [False, True], "offload": ["none", "optimizer"],
    }  # fmt: skip
    more = {
        "model": "llama-8b",
        "cluster": "h100-sxm-16x8",
        "workload": {"seq_len": 4096, "global_batch_size": 1024},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "large.yaml").write_text(yaml.safe_dump({**SPEC, **more, "space": large}))
    code = """
import resource, sys
from pathlib import Path
from autotune import cli
assert cli.run(["plan", "small.yaml", "--no-profile"]) == 0  # all that it imports is there
size = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 20),) * 2)  # the columns of the large space need tens of MiB
sys.exit(cli.run(["plan", "large.yaml", "--no-profile"]))
"""
    environment = os.environ | {
        "AUTOTUNE_STORE": str(tmp_path / "results.db"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode not in (0, -6, -9, -11)
    assert "autotune ran out of memory" in done.stderr
    assert "Traceback" not in done.stderr


MODEL = ("--model", "qwen3-8b", "--cluster", "h200-sxm-4x8", "--seq-len", "8192", "--batch", "512")


def test_plan_needs_no_file(run, refusal):
    document = run("plan", *MODEL, "--json", "--top", 2).document
    assert [row["rank"] for row in document["configs"]] == [1, 2]
    assert document["baseline"]["rank"] == 0
    assert {
        row["config"]["tp"] * row["config"]["pp"] * row["config"]["dp"]
        for row in document["configs"]
    } == {32}
    assert "--cluster, --batch" in refusal("plan", "--model", "qwen3-8b", "--seq-len", "8192")
    assert "replace a spec" in refusal("plan", "laptop", *MODEL)


@pytest.mark.parametrize(
    ("model", "cluster", "space"),
    [
        ("llama-8b", "h100-sxm-1x1", "single-gpu"),
        ("llama-8b", "h100-sxm-1x8", "dense-single-node"),
        ("llama-8b", "h100-sxm-2x8", "dense-multi-node"),
        ("mixtral-8x7b", "h100-sxm-2x8", "moe-multi-node"),
    ],
)
def test_the_space_of_a_plan_without_a_file_fits_model_and_cluster(model, cluster, space):
    assert usual_space({"model": model, "cluster": cluster}) == space


def test_plan_without_a_file_works_for_the_local_cluster(run, refusal):
    document = run(
        "plan",
        "--model",
        "nano-llama",
        "--cluster",
        "local",
        "--seq-len",
        64,
        "--batch",
        8,
        "--json",
    ).document
    config = document["configs"][0]["config"]
    assert config["tp"] * config["pp"] * config["dp"] <= local_cluster().num_gpus


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_plan_keeps_risk_and_mfu_and_has_a_row_of_the_baseline(width):
    study = load_study(SPEC_THAT_FITS)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(plan_table(plan_of(study, top=3)))
    text = console.file.getvalue()
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    head = next(line for line in lines if "rank" in line)
    assert {"gain", "MFU", "memory", "OOM", "tokens/s"} <= set(head.split())
    assert "(baseline)" in text
    assert "1.00x" in text


SPEC_THAT_FITS = {
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "space": "dense-single-node",
    "workload": {"seq_len": 1024, "global_batch_size": 512},
}


def test_verbose_counts_excluded_combinations_by_reason(run):
    short = run("plan", "laptop").out
    assert "--verbose says why" in short
    assert len(run("plan", "laptop", "--verbose").out.splitlines()) > len(short.splitlines())


HF = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip


def test_an_inline_model_takes_the_keys_of_a_config_json():
    own = {"hidden_size": 4096, "ffn_hidden_size": 14336, "num_layers": 32, "num_attention_heads": 32, "num_kv_heads": 8, "vocab_size": 128256, "gated_mlp": True}  # fmt: skip
    as_asked = load_study(SPEC_THAT_FITS | {"model": own}).workload.model
    for keys in (
        {"model_type": "llama", "tie_word_embeddings": False},
        {"hidden_act": "silu"},
        {"gated_mlp": True},
    ):
        model = load_study(SPEC_THAT_FITS | {"model": HF | keys}).workload.model
        assert model.num_parameters == as_asked.num_parameters
    with pytest.raises(SpecError, match="model_type"):
        load_study(SPEC_THAT_FITS | {"model": HF})
    named = load_study(
        SPEC_THAT_FITS | {"model": HF | {"model_type": "llama", "name": "mine"}}
    ).workload.model
    assert named.name == "mine"


def test_all_mistakes_in_a_spec_are_reported_together():
    wrong = {
        "model": "gpt2-mediun",
        "cluster": "h200-sxmm-4x8",
        "space": {
            "micro_batch_size": [0],
            "recompute": ["sometimes", "full"],
            "tp": [2],
            "pp": [1.5],
        },
        "workload": {"seq_len": 8192, "global_batch_size": "x"},
        "trainer": "torchtitann",
        "searcher": "bayes",
        "runner": "rai",
        "budgett": {},
    }
    with pytest.raises(SpecError) as raised:
        load_study(wrong)
    found = {error.field for error in (raised.value, *raised.value.others)}
    assert found == {
        "model",
        "cluster",
        "space.micro_batch_size",
        "space.recompute",
        "space.pp.0",
        "workload.global_batch_size",
        "trainer",
        "searcher",
        "runner",
        "budgett",
    }
    names = {k: v for k, v in wrong.items() if k != "budgett"} | {
        "workload": SPEC_THAT_FITS["workload"],
        "space": "dense-multi-nod",
    }
    with pytest.raises(AutotuneError) as raised:
        load_study(names)
    assert {e.field for e in (raised.value, *raised.value.others)} == {"model", "cluster", "space", "trainer", "searcher", "runner"}  # fmt: skip


def test_a_misplaced_key_in_workload_is_reported_with_its_place():
    wrong = SPEC_THAT_FITS | {"workload": SPEC_THAT_FITS["workload"] | {"cluster": "h100-sxm-1x8"}}
    with pytest.raises(SpecError, match="this is a key of the spec itself; write `cluster"):
        load_study(wrong)


@pytest.mark.parametrize(("usd", "said"), [(0.5, "$0.50"), (95.4, "$95"), (1234, "$1,200"), (45123, "$45k"), (2259101, "$2.3M"), (2e6, "$2.0M"), (9.6e9, "$9.6B"), (None, "-")])  # fmt: skip
def test_money_has_two_digits(usd, said):
    assert format_usd(usd) == said


@pytest.mark.parametrize(
    ("days", "said"),
    [(0.0423, "0.042"), (4.25, "4.2"), (6.0, "6.0"), (2e4, "20k"), (100.4, "100"), (207.1, "210")],
)
def test_days_and_energy_have_two_digits(days, said):
    assert two_digits(days) == said


def test_tables_of_clusters_and_sizes_print_days_with_two_digits(write, output_of):
    for options in ("--gpus", "8,16"), ("--clusters", "h100-sxm,v100-32gb"):
        output = output_of("plan", write(), *options, "--tokens", "7.7e13")
        days = re.findall(r"\t([\d.,k]+)\t\$", output)
        assert days
        assert all(
            len(number.strip("k0.,").replace(",", "").replace(".", "")) <= 2 for number in days
        )
