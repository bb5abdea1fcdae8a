"""Values of a draft that nobody has filled in yet."""

from __future__ import annotations

import os

from autotune.cli.output import note_placeholders, placeholders

PROGRAM = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
for step in range(20):
    print(f"step {step} loss 1.0 time 0.1s")
"""


def test_a_placeholder_comment_is_after_or_above_its_value():
    text = "\n".join(
        (
            "# Next, fill in what the comments ask for",
            "model: nano-gpt    # fill in: a name from `autotune models`",
            "cluster: local     # this machine",
            "# fill in: seq_len, tokens per sequence",
            "# fill in: global_batch_size, sequences per optimizer step",
            "workload: {seq_len: 1024, global_batch_size: 8}",
            "trainer:",
            "  argv:",
            "    - --data=FILL-IN    # fill in: the script requires this option (line 3)",
        )
    )
    assert list(placeholders(text)) == [(2, "model"), (6, "workload"), (6, "workload"), (9, "")]


def test_commands_list_placeholders_until_their_comments_are_deleted(run, tmp_path):
    script, spec = tmp_path / "train.py", tmp_path / "study.yaml"
    script.write_text(PROGRAM)
    assert run("init", script, "-o", spec).code == 0
    lines = spec.read_text().splitlines()
    model = next(i for i, line in enumerate(lines, start=1) if line.startswith("model:"))
    planned = run("plan", spec)
    assert planned.code == 0, planned.err
    assert f"still has the comment `fill in` at line {model} (model), line" in planned.err
    assert "(workload)" in planned.err
    spec.write_text("\n".join(line.split("  #")[0] for line in lines if not line.startswith("#")))
    assert "fill in" not in run("plan", spec).err


def test_an_error_about_a_placeholder_asks_for_the_values(run, tmp_path):
    script, spec = tmp_path / "train.py", tmp_path / "study.yaml"
    script.write_text(PROGRAM.replace("--batch-size", "--lr"))
    assert run("init", script, "-o", spec).code == 0
    for command in ("check", "plan"):
        refused = run(command, spec)
        assert refused.code != 0
        assert "no config in the space" in refused.err
        assert "; first enter your own values at line" in refused.err


def test_a_mistake_beside_a_placeholder_keeps_its_remedy(run, tmp_path):
    script, spec = tmp_path / "train.py", tmp_path / "study.yaml"
    script.write_text(PROGRAM)
    assert run("init", script, "-o", spec).code == 0
    spec.write_text(spec.read_text().replace("cluster: local", "cluster: h100-sxn-1x8"))
    refused = run("plan", spec)
    assert refused.code != 0
    assert "h100-sxm" in refused.err
    assert "; first enter your own values at line" in refused.err


def test_a_spec_without_placeholders_has_no_note(run, write):
    assert "fill in" not in run("plan", write()).err


def test_a_pipe_is_not_opened_again(tmp_path, capsys):
    # nobody writes to it any more: opening it would wait for ever
    os.mkfifo(tmp_path / "spec.yaml")
    note_placeholders(str(tmp_path / "spec.yaml"))
    assert capsys.readouterr().err == ""
