"""Shell scripts as people write them: what they start, and with which words."""

from __future__ import annotations

import time

import pytest

from autotune.errors import SpecError
from autotune.trainers import trainer
from autotune.trainers.documents.shell_statements import statements_of
from autotune.trainers.documents.shell_words import command_of
from autotune.trainers.present_configuration import PresentConfiguration

SBATCH = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=h100:8
set -euo pipefail
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) TP=4 PP=2
cat > hostfile <<EOF
node --never-read 1 --nor-this 2
EOF
case ${SIZE:-8b} in
  7b|70b) LAYERS=80; HIDDEN=8192 ;;
  8b*)
    LAYERS=32; HIDDEN=4096
    ;;
  *) LAYERS=1 ;;
esac
declare -a MODEL=(--num-layers $LAYERS --hidden-size ${HIDDEN} --num-attention-heads 32 --swiglu --normalization RMSNorm)
MODEL+=( --moe-layer-freq "([0]*1+[1]*31)" --spec "a b" )
: "${SEQ:=8192}"
PER_NODE=$((2 * 8)); BATCH=$(( PER_NODE * 16 ))
[[ $TP == 4 && -n "$PP" ]] && MODEL+=( --sequence-parallel )
[ $TP = 8 ] && MODEL+=( --never ) || MODEL+=( --fp16 )
for i in 1 2; do echo $i; done
ulimit -n 65535 || exit 1
"""
LAUNCH = """srun --kill-on-bad-exit=1 torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES --rdzv_id $SLURM_JOB_ID pretrain_gpt.py "${MODEL[@]}" \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --seq-length $SEQ --micro-batch-size 1 --global-batch-size $BATCH \\
  --tensorboard-dir $(pwd)/tb --wandb-project "my proj" "$@" 2>&1 | tee -a log.txt
"""


def test_a_script_of_slurm_is_read_as_the_shell_would() -> None:
    reading = trainer("megatron").read_config(
        PresentConfiguration(files={"train.sbatch": SBATCH + LAUNCH})
    )
    degrees = {
        name: reading.knobs[name] for name in ("tp", "pp", "dp", "accumulation_steps", "precision")
    }
    assert degrees == {"tp": 4, "pp": 2, "dp": 4, "accumulation_steps": 64, "precision": "fp16"}
    assert (reading.seq_len, reading.global_batch_size) == (8192, 256)
    assert {name: reading.model[name] for name in ("num_layers", "hidden_size")} == {
        "num_layers": 32,
        "hidden_size": 4096,
    }
    assert reading.settings == {
        "moe-layer-freq": "([0]*1+[1]*31)",
        "spec": "a b",
        "tensorboard-dir": "./tb",
        "wandb-project": "my proj",
    }
    assert reading.remarks == ()


def test_a_number_of_nodes_that_only_the_job_knows_is_not_taken_for_one() -> None:
    text = (SBATCH + LAUNCH).replace("#SBATCH --nodes=4", "#SBATCH --ntasks=4")
    reading = trainer("megatron").read_config(PresentConfiguration(files={"train.sbatch": text}))
    assert "dp" not in reading.knobs
    assert reading.remarks == ()  # a launch says the number of nodes itself


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=1 B='x y' python train.py --lr 1e-4 > log 2>&1 &\n", "python train.py --lr 1e-4"),
        ("cd x && python train.py --lr=$LR && echo --done", "python train.py --lr=$LR"),
        (
            'CMD="python train.py --lr 1"\nsrun -l sh -c "cd x; $CMD | tee log"\n',
            "srun -l python train.py --lr 1",
        ),
        ('bash -lc "python train.py --lr 1 --bf16 2>&1"', "python train.py --lr 1 --bf16"),
        ("run() {\n  python train.py --lr 1; }\nrun", "python train.py --lr 1"),
        ("(cd x; python train.py --lr 1)", "python train.py --lr 1"),
        ("python train.py --lr 1 # --commented\n#--out 3", "python train.py --lr 1"),
        ("if true; then python train.py --lr 1; fi", "python train.py --lr 1"),
        (
            "if [[ a == b* ]]; then\n python x.py --a --b\nelse\n python train.py --lr 1\nfi",
            "python train.py --lr 1",
        ),
        (
            "python train.py --data <path to data> --lr 1",
            "python train.py --data <path to data> --lr 1",
        ),
        ("python train.py --lr `cat lr` --steps 1", "python train.py --lr `cat lr` --steps 1"),
        (
            "GBS=64 MBS=2 NODES=2\nGAS=$((GBS / (MBS * (NODES * 8))))\nrun --gas $GAS --left $(( (GBS - 4) % 7 ))",
            "run --gas 2 --left 4",
        ),
        (
            "P=${P:-2048}\nR=${R:-8192}\nLIMIT=${LIMIT:-$((P + R))}\nrun --limit $LIMIT --twice $((LIMIT * 2))",
            "run --limit 10240 --twice 20480",
        ),
        (
            'RUN="torchrun train.py --lr 1e-4"\nRUN="$RUN 2>&1 | tee train.log"\neval ${RUN}',
            "eval torchrun train.py --lr 1e-4",
        ),
        (
            'KINDS=\'{"mode": "packed"}\'\nARGS=(--kinds "$KINDS" --seed 1)\nrun "${ARGS[@]}" --again "$KINDS"',
            'run --kinds {"mode": "packed"} --seed 1 --again {"mode": "packed"}',
        ),
    ],
)
def test_the_command_of(text: str, words: str) -> None:
    assert " ".join(command_of(text)[0]) == words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "esac\n)\n;;\nfi",
        "case x in",
        "case",
        "'",
        '"' * 9,
        "${" * 99,
        "<<",
        "((((",
        "cat <<E\n--a --b",
    ],
)
def test_what_is_no_script_is_refused_in_words(text: str) -> None:
    with pytest.raises(SpecError, match="no command with options"):
        command_of(text)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "piece", ['"', "'", "${", "$((", "<<a\n", "<a ", "([[", "`", "\\", "case x in "]
)
def test_the_longest_file_is_split_in_linear_time(piece: str) -> None:
    def seconds(length: int) -> float:
        began = time.process_time()
        list(statements_of(piece * (length // len(piece))))
        return time.process_time() - began

    assert seconds(1 << 18) < 16 * 5 * max(seconds(1 << 14), 0.002)
