"""What says the number format of a program, and in which words: never a word that its option
refuses, never a format that it does not compute in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.onboarding.drafting import Launch, Read

ARGPARSE = """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=4)
"""
TRAINER = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class ModelArguments:
    dtype: str | None = field(default=None, metadata={"help": "of the weights", "choices": ["auto", "bfloat16", "float32"]})
HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
"""
CONFIGURATOR = """
import torch
from contextlib import nullcontext
batch_size = 12
gradient_accumulation_steps = 1
block_size = 64
device = "cuda"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
exec(open("configurator.py").read())
AUTOCAST
for it in range(9):
    print(f"iter {it}: loss {loss:.3f}")
"""
NULL = (
    'ctx = nullcontext() if "cuda" not in device else torch.autocast("cuda", dtype=torch.bfloat16)'
)


H100 = "h100-sxm-1x1"
VALUES = "trainer/values/precision"
OFFERED = "space/precision"
FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
NOT_SAID = {"trainer/values/precision": None}


def launch(
    program: str, run: str = "python train.py", cluster: str | None = H100, **read: Any
) -> Launch:
    return Launch({"train.py": program, "run.sh": f"{run}\n"}, Read(**read), cluster, "gpt2-small")


def with_option(option: str, **read: Any) -> Launch:
    return launch(f"{ARGPARSE}p.add_argument({option})\n", **read)


AMP_CHOICES = ["amp", "amp_bf16", "bf16", "fp16", "pure_bf16", "fp32"]
ON_CPUS = (("--device=cpu", None), ("--device=cpu --dtype=bfloat16", None), ("", "cpu-1x1"))
AS_STATEMENTS = "if device == 'cpu':\n    ctx = nullcontext()\nelse:\n    ctx = torch.autocast('cuda', dtype=torch.bfloat16)"
SWITCHED = "import os\n{constant}with torch.autocast('cuda', dtype=torch.bfloat16, enabled={switch}):\n    pass\n"
READ = {
    **{
        f"autocast that the text switches on is on: {switch}": launch(
            ARGPARSE + SWITCHED.format(constant=constant, switch=switch),
            document={"trainer/fixed/precision": "bf16"},
            settled=("space.precision",),
        )
        for constant, switch in (("", "True"), ("AMP = True\n", "AMP"), ("", "device == 'cuda'"))
    },
    **{
        f"autocast that something else switches on is asked for: {switch}": launch(
            ARGPARSE + SWITCHED.format(constant=constant, switch=switch),
            document={"trainer/fixed": None},
            notes=("the script mentions bf16, but it is unclear whether it trains in that format",),
            asked=("space.precision", "baseline"),
        )
        for constant, switch in (
            ("", "cfg.use_amp"),
            ("AMP = os.environ.get('AMP') == '1'\n", "AMP"),
        )
    },
    "only words of the choices are written: without auto": with_option(
        "'--dtype', default='auto', choices=['auto', 'bfloat16', 'float16', 'float32']",
        document={VALUES: FORMATS, OFFERED: ["fp32", "bf16", "fp16"]},
    ),
    "only words of the choices are written: as they are spelled": with_option(
        "'--precision', default='FP32', choices=['FP32', 'BF16']",
        document={VALUES: {"fp32": "FP32", "bf16": "BF16"}, OFFERED: ["fp32", "bf16"]},
    ),
    "only words of the choices are written: without a default": with_option(
        "'--torch_dtype', choices=['bfloat16', 'float16']",
        document={VALUES: {"bf16": "bfloat16", "fp16": "float16"}, OFFERED: ["bf16", "fp16"]},
    ),
    **{
        f"a type that is not given and has no words is no knob: {name}": launch(
            f"{ARGPARSE}p.add_argument('{name}', default=None)\nmodel.to(torch.bfloat16)\n",
            document=NOT_SAID,
            without=("{precision}",),
            asked=("space.precision", "baseline"),
        )
        for name in ("--model-dtype", "--dtype", "--torch_dtype", "--param-dtype")
    },
    "flags of autocast go before the type of the weights": launch(
        f'{ARGPARSE}p.add_argument("--model-dtype", default=None)\np.add_argument("--amp", action="store_true")\n',
        words=("{precision}",),
        document={VALUES: {"fp16": "--amp", "fp32": None}},
        knobs=("precision=fp32",),
    ),
    **{
        f"training's own flags go before the type that a model is loaded in:{given}": launch(
            TRAINER,
            f"torchrun --nproc-per-node 2 train.py{given}",
            "h100-sxm-1x2",
            words=("{precision}", *(["--dtype=bfloat16"] if "--dtype" in given else [])),
            without=() if "--dtype" in given else ("--dtype",),
            document={VALUES: {"bf16": "--bf16=True", "fp16": "--fp16=True", "fp32": None}},
            knobs=(f"precision={today}",),
        )
        for given, today in (
            ("", "fp32"),
            (" --bf16", "bf16"),
            (" --bf16 --dtype bfloat16", "bf16"),
        )
    },
    "choices without a default say nothing of today": with_option(
        "'--dtype', choices=['bfloat16', 'float32']",
        document={"baseline": None},
        notes=("--dtype (line 5) is not given",),
    ),
    "numbers keep to the choices": launch(
        ARGPARSE.replace("default=4", "default=4, choices=[2, 4, 6]"),
        document={"space/micro_batch_size": [2, 4, 6]},
    ),
    **{
        f"a default that the machine decides: {cluster}": launch(
            CONFIGURATOR.replace("AUTOCAST", ""),
            cluster=cluster,
            words=("--dtype={precision}",),
            document={VALUES: FORMATS},
            knobs=(f"precision={today}",),
        )
        for cluster, today in ((H100, "bf16"), ("v100-32gb-1x1", "fp16"), ("cpu-1x1", "fp16"))
    },
    "a default that a machine decides which nobody names": launch(
        CONFIGURATOR.replace("AUTOCAST", ""),
        cluster=None,
        words=("--dtype={precision}",),
        document={VALUES: FORMATS},
        asked=("baseline",),
        notes=("the default of --dtype (line 8) depends on the machine",),
    ),
    "a condition that is not about the machine is not known": launch(
        f"{ARGPARSE}p.add_argument('--dtype', default='bfloat16' if FAST else 'float32')\n",
        asked=("baseline",),
        notes=("the default of --dtype (line 5) depends on the machine",),
    ),
    **{
        f"autocast that is left out on CPUs is no knob there: {run} {cluster}, {autocast.split()[0]}": launch(
            CONFIGURATOR.replace("AUTOCAST", autocast),
            f"python train.py {run}",
            cluster,
            without=("{precision}",),
            document={**NOT_SAID, OFFERED: ["fp32"]},
            knobs=("precision=fp32",),
            notes=("on CPUs train.py always computes in fp32 (line",),
        )
        for run, cluster in ON_CPUS
        for autocast in (NULL, AS_STATEMENTS)
    },
    **{
        f"the word of today is kept where others are near: {given}": launch(
            f"{ARGPARSE}p.add_argument('--precision', default='fp32', choices={AMP_CHOICES})\n",
            f"python train.py --precision {given}",
            document={f"{VALUES}/{value}": word for value, word in values.items()},
            knobs=("precision=bf16",),
        )
        for given, values in (
            ("amp_bf16", {"bf16": "amp_bf16", "fp16": "amp"}),
            ("bf16", {"bf16": None, "fp16": None}),
            ("pure_bf16", {"bf16": "pure_bf16"}),
        )
    },
    **{
        f"offered are the format of today and those that may be faster there: {today}, {cluster}": launch(
            f"{ARGPARSE}p.add_argument('--dtype', default='{today}', choices=['float32', 'bfloat16', 'float16'])\n",
            cluster=cluster,
            document={OFFERED: offered},
        )
        for today, cluster, offered in (
            ("bfloat16", "h100-sxm-1x8", ["bf16"]),
            ("float16", "h100-sxm-1x8", ["fp16", "bf16"]),
            ("float32", "h100-sxm-1x8", ["fp32", "bf16"]),
            ("float32", None, ["fp32", "bf16"]),
            ("float32", "v100-32gb-1x8", ["fp32", "fp16"]),
            ("float16", "v100-32gb-1x8", ["fp16"]),
            ("float32", "cpu-1x4", ["fp32", "bf16"]),
            ("bfloat16", "cpu-1x4", ["bf16", "fp32"]),
        )
    },
    **{
        f"offered by flags: {flags}": launch(
            TRAINER,
            f"torchrun --nproc-per-node 8 train.py {flags}",
            "h100-sxm-1x8",
            document={OFFERED: offered},
        )
        for flags, offered in (
            ("--bf16", ["bf16"]),
            ("--fp16", ["fp16", "bf16"]),
            ("", ["fp32", "bf16"]),
        )
    },
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)
