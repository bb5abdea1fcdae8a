"""A study as a job: what the files say, and what is refused before any allocation is asked for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from autotune import cli
from autotune.slurm.allocation import Allocation
from tests.cli.conftest import Done

SPEC: dict[str, Any] = {
    "name": "two nodes",
    "model": "gpt2-medium",
    "cluster": "h100-sxm-2x8",
    "workload": {"seq_len": 1024, "global_batch_size": 512},
    "space": "dense-multi-node",
    "searcher": "random",
    "runner": {"kind": "simulated"},
}


@pytest.fixture(autouse=True)
def without_slurm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A folder to work in, on a machine without Slurm."""
    OUTPUT.append(capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("AUTOTUNE_STORE", raising=False)
    return tmp_path


OUTPUT: list[pytest.CaptureFixture[str]] = []
"""of the test that runs, the last"""


def tune(*words: str, on: str = "slurm", **changes: Any) -> Done:
    Path("spec.yaml").write_text(yaml.safe_dump({**SPEC, **changes}))
    OUTPUT[-1].readouterr()
    code = cli.run(["tune", "spec.yaml", "--on", on, *words])
    said = OUTPUT[-1].readouterr()
    return Done(code, said.out, said.err)


def script() -> list[str]:
    return Path("two-nodes/job.sbatch").read_text().splitlines()


def test_a_job_asks_for_the_nodes_of_the_cluster(without_slurm: Path) -> None:
    asked = {
        "time": "4h",
        "partition": "gpu",
        "requeue": True,
        "spare_nodes": 1,
        "constraint": "h100",
        "setup": ["module load cuda"],
    }
    done = tune(slurm=asked)
    assert done.code == 0, done.err
    lines = script()
    for line in (
        "#SBATCH --nodes=3",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --time=0-04:00:00",
        "#SBATCH --partition=gpu",
        "##SBATCH --account=NAME",
        "#SBATCH --constraint=h100",
        "#SBATCH --requeue",
        "#SBATCH --no-kill",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --dependency=singleton",
        "module load cuda",
    ):
        assert line in lines, line
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith(f"tune study.yaml --base {without_slurm} --in .")
    assert done.out.strip() == f"cd {without_slurm}/two-nodes && sbatch job.sbatch"
    assert (without_slurm / "two-nodes").stat().st_mode & 0o077 == 0
    assert (without_slurm / "two-nodes/study.yaml").stat().st_mode & 0o077 == 0, (
        "a spec may hold secrets"
    )
    subprocess.run(["/bin/sh", "-n", "two-nodes/job.sbatch"], check=True)


def test_gpus_are_asked_for_once() -> None:
    assert tune(slurm={"gres": "gpu:h100:8"}).code == 0
    assert [line for line in script() if "gpu" in line and line.startswith("#SBATCH")] == [
        "#SBATCH --gres=gpu:h100:8"
    ]


def test_containers_become_options_of_each_step() -> None:
    assert tune(slurm={"container": {"image": "a.sqsh", "mounts": ["/data:/data"]}}).code == 0
    (line,) = (line for line in script() if "AUTOTUNE_SRUN" in line)
    assert "--container-image=a.sqsh" in line
    assert line.rstrip("'").endswith(",/data:/data")


def test_a_folder_belongs_to_one_study() -> None:
    assert tune(slurm={"time": "1h"}).code == 0
    assert tune(slurm={"time": "2h"}).code == 0, "another limit makes no other study"
    done = tune(seed=3)
    assert done.code == 1
    assert "holds another study" in done.err
    Path("two-nodes/study.yaml").unlink()
    assert "files that do not belong to a study" in tune(seed=3).err


def test_the_answer_for_programs(without_slurm: Path) -> None:
    job = json.loads(tune("--json").out)["job"]
    assert job["folder"] == f"{without_slurm}/two-nodes"
    assert job["id"] is None
    assert [Path(file).name for file in job["files"]] == ["study.yaml", "job.sbatch"]


def test_a_program_that_is_not_there_is_refused_before_the_job(
    without_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(without_slurm)
    programs = {
        "argv": ["python", "tran.py", "--mb={micro_batch_size}", "--acc={accumulation_steps}"],
        "cwd": ".",
    }
    asked = {
        "space": {"micro_batch_size": [1, 2], "world_sizes": [1], "precision": ["fp32"]},
        "runner": "slurm",
        "cluster": "h100-sxm-1x1",
    }
    done = tune(**asked, trainer={"kind": "command", **programs})
    assert (done.code, "tran.py, but there is no such file in" in done.err) == (2, True), done.err
    Path("tran.py").write_text("")
    assert tune(**asked, trainer={"kind": "command", **programs}).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--submit", "--option", "time=4h"], "--submit and --option have no effect without --on"),
        (["--on", "slurm", "--new", "--in", "there"], "--new and --in have no effect with --on"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], told: str) -> None:
    Path("spec.yaml").write_text(yaml.safe_dump(SPEC))
    OUTPUT[-1].readouterr()
    assert cli.run(["tune", "spec.yaml", *words]) == 2
    assert told in OUTPUT[-1].readouterr().err


def test_commands_that_are_proposed_name_the_folder_of_the_results() -> None:
    Path("spec.yaml").write_text(yaml.safe_dump({**SPEC, "budget": {"max_trials": 1}}))
    Path("res").mkdir()
    OUTPUT[-1].readouterr()
    assert cli.run(["tune", "spec.yaml", "--in", "res"]) == 0
    said = OUTPUT[-1].readouterr()
    assert "autotune explain --in res" in said.out
    assert "autotune export --in res" in said.err
    assert cli.run(["explain", "--in", "res"]) == 0
    assert cli.run(["export", "--in", "res"]) == 0


def test_a_wrong_option_is_not_looked_for_in_the_spec() -> None:
    told = tune("--option", "time=4x", slurm={"time": "4h"})
    assert told.code == 2
    assert told.err.startswith("error: slurm.time: must be a time")
    assert "spec.yaml" not in told.err
    in_the_spec = tune("--option", "partition=gpu", slurm={"time": "4x"})
    assert "error: spec.yaml:" in in_the_spec.err


def test_in_a_job_of_several_nodes_a_local_draft_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autotune.slurm.allocation.allocation", lambda: Allocation(job="7", num_nodes=2, node_list="n[1-2]"))  # fmt: skip
    Path("train.py").write_text("import torch\n")
    OUTPUT[-1].readouterr()
    cli.run(["init", "train.py", "--model", "nano-gpt"])
    assert (
        "note: job 7 has 2 nodes, but `cluster: local` is only this node"
        in OUTPUT[-1].readouterr().err
    )
    cli.run(["init", "train.py", "--model", "nano-gpt", "--cluster", "h100-sxm-2x8"])
    assert "job 7" not in OUTPUT[-1].readouterr().err


def program(*argv: str, **metrics: str) -> dict[str, Any]:
    """A trainer of a command."""
    return {"kind": "command", "argv": list(argv), "metrics": {"step": "^step ([0-9]+)", **metrics}}


class Asked(NamedTuple):
    """A row of a table: what differs from the spec, words of the command line, and what comes of
    it."""

    changes: Mapping[str, Any]
    said: str = ""
    """a part of what is printed on stderr"""
    code: int = 2
    words: tuple[str, ...] = ()
    lines: frozenset[str] = frozenset()
    """lines of the job's script"""


IMAGE = {"container": {"image": "a.sqsh"}}
IN_THE_IMAGE = {
    "trainer": program(
        "/in/the/image/train",
        "{micro_batch_size}",
        "{accumulation_steps}",
        "{precision}",
        step_time_s="time: ([0-9.]+)",
    ),
    "space": {"tp": [1], "micro_batch_size": [4, 8], "precision": ["bf16"]},
    "runner": "slurm",
}
ABSENT = {
    "trainer": program(
        "no-such-program", "--batch={micro_batch_size}", "--accum={accumulation_steps}"
    ),
    "runner": "ray",
    "space": {"micro_batch_size": [1, 2]},
}
REFUSED = {
    **{
        f"a wrong job: {words}": Asked({"slurm": slurm}, words)
        for slurm, words in (
            ({"time": 240}, "may mean minutes"),
            ({"time": "4 fortnights"}, "time"),
            ({"partition": "a b"}, "partition"),
            ({"output": "x.log"}, "autotune sets output itself"),
            ({"signal": "USR2"}, "autotune sets signal itself"),
            ({"comment": "two words"}, "must be one word"),
            ({"nodes": 2}, "already sets the job's nodes and GPUs"),
            ({"setup": ["a\nb"]}, "setup"),
            ({"requeue": "yes please"}, "requeue"),
            ({"-x": 1}, "not an sbatch option"),
        )
    },
    "a program that the login node cannot see, outside of a container": Asked(
        IN_THE_IMAGE, "there is no such program here"
    ),
    "a local runner beside a container": Asked(
        {"runner": "local", "cluster": "h100-sxm-1x8", "slurm": IMAGE}, "outside the container"
    ),
    "a trainer of our own processes": Asked({"runner": "slurm"}, "set runner: ray"),
    "a space without a config": Asked({"space": {"tp": [3]}}, "the nearest miss is", 1),
    "an option of a runner that it does not have": Asked(
        {"runner": {"kind": "ray", "cpus_per_rnk": 2}}, "cpus_per_rnk"
    ),
    "a searcher that is not there": Asked({"searcher": "bayesain"}, "bayesain"),
    "a program that is not there": Asked(
        ABSENT, "'no-such-program', but there is no such program here"
    ),
    "a runner of one node": Asked({"runner": "local"}, "the 'local' runner has one node"),
    "nodes that are not counted where they are not there yet": Asked(
        {"cluster": "slurm"}, "slurm: {nodes: 2, gpus_per_node: 8}"
    ),
    "another scheduler": Asked({}, "slurm", words=("--on", "slrum")),
}
WRITTEN = {
    "options of the command line are those of the spec": Asked(
        {},
        words=("time=90min", "qos=high", "exclusive=false", "cpus-per-task=4"),
        lines=frozenset(
            {"#SBATCH --time=0-01:30:00", "#SBATCH --qos=high", "#SBATCH --cpus-per-task=4"}
        ),
    ),
    "lines, lists and texts as their keys want them": Asked(
        {},
        words=(
            "setup=module load cuda",
            "setup=source env.sh",
            "account=1234",
            "spare_nodes=1",
            "constraint=80",
        ),
        lines=frozenset(
            {
                "module load cuda",
                "source env.sh",
                "#SBATCH --account=1234",
                "#SBATCH --nodes=3",
                "#SBATCH --constraint=80",
            }
        ),
    ),
    "a container holds programs that the login node cannot see": Asked(
        {**IN_THE_IMAGE, "slurm": IMAGE}
    ),
    "nodes that are counted in the spec": Asked(
        {"cluster": "slurm", "slurm": {"nodes": 4, "gpus_per_node": 2}},
        lines=frozenset({"#SBATCH --nodes=4", "#SBATCH --gpus-per-node=2"}),
    ),
    **{
        f"a key that looks misspelled: {key}": Asked(
            {"slurm": {key: "x"}},
            f"note: slurm.{key} becomes #SBATCH --{key.replace('_', '-')}, which Slurm itself does not have; did you mean {meant}?",
        )
        for key, meant in (
            ("partion", "partition"),
            ("spare_node", "spare_nodes"),
            ("constrain", "constraint"),
            ("mem_per_gpus", "mem_per_gpu"),
        )
    },
    **{
        f"an option of Slurm or of a site: {key}": Asked({"slurm": {key: "x"}})
        for key in ("constraint", "mem-per-gpu", "mail_user", "site_energy")
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    asked = REFUSED[name]
    done = tune(*asked.words, **asked.changes)
    assert done.code == asked.code
    assert asked.said in done.err
    assert not Path("two-nodes").exists()


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(name: str) -> None:
    asked = WRITTEN[name]
    done = tune(*(part for word in asked.words for part in ("--option", word)), **asked.changes)
    assert done.code == 0, done.err
    assert asked.said in done.err
    assert ("did you mean" in done.err) == bool(asked.said)
    assert asked.lines <= set(script())


def test_without_sbatch_nothing_is_submitted() -> None:
    done = tune("--submit")
    assert done.code == 2
    assert "sbatch is not installed on this machine" in done.err


def test_options_of_the_command_line_are_in_the_order_of_the_command_line_and_kept_in_the_spec() -> (
    None
):
    words = ("setup=module load cuda", "setup=source env.sh", "qos=high", "exclusive=false")
    assert tune(*(part for word in words for part in ("--option", word))).code == 0
    lines = script()
    assert lines.index("module load cuda") < lines.index("source env.sh")
    assert not any("exclusive" in line or "--mem" in line for line in lines)
    assert yaml.safe_load(Path("two-nodes/study.yaml").read_text())["slurm"]["qos"] == "high"
