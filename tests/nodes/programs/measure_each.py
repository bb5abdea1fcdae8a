"""One rank of the calibration's probe of every rank and pair of nodes; rank 0 prints what is out of
line as JSON."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from autotune.diagnosis.out_of_line import of_readings
from autotune_workers.calibrate import QUICK, each_rank
from autotune_workers.training.parallel.mesh import RankContext

dist.init_process_group("gloo")
context = RankContext(
    rank=dist.get_rank(), world_size=dist.get_world_size(), device=torch.device("cpu")
)
told: list[object] = [None] * context.world_size
dist.all_gather_object(told, each_rank(context, QUICK))
if context.rank == 0:
    print(json.dumps([stray.to_dict() for stray in of_readings(told)]), flush=True)  # type: ignore[arg-type]
dist.destroy_process_group()
