"""A program in the manner of Ray's template for FSDP2, tuned: a small transformer, sharded with
`fully_shard`, one report per optimizer step.

Five of its lines are autotune's; `docs/how-to/ray-train.md` shows them.
"""

import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import autotune.ray

VOCABULARY, WIDTH, LAYERS, SEQ_LEN, BATCH = 256, 64, 2, 64, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def train_func(config):
    torch.manual_seed(0)
    ranks, rank = ray.train.get_context().get_world_size(), ray.train.get_context().get_world_rank()
    mesh = init_device_mesh("cpu", (ranks,))
    dtype = torch.bfloat16 if config["precision"] == "bf16" else torch.float32
    model = Model()
    for layer in (*model.layers, model):
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=config["zero_stage"] == 3,
            mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(rank)
    micro_batch = config["micro_batch_size"]
    accumulation = BATCH // ranks // micro_batch
    for step in range(config["steps"]):
        total = 0.0
        for last in [False] * (accumulation - 1) + [True]:
            model.set_requires_gradient_sync(last)
            tokens = torch.randint(VOCABULARY, (micro_batch, SEQ_LEN + 1), generator=batches)
            logits = model(tokens[:, :-1]).float()
            loss = (
                nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                / accumulation
            )
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        ray.train.report({"step": step, "loss": total})


def make_trainer(steps=1000):
    return TorchTrainer(
        train_func,
        train_loop_config={
            "steps": steps,
            "micro_batch_size": 1,
            "zero_stage": 3,
            "precision": "fp32",
        },
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    )


SPACE = {"micro_batch_size": [1, 2, 4, 8], "zero_stage": [2, 3], "precision": ["fp32", "bf16"]}
MODEL = {
    "num_layers": LAYERS,
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}
SIZES = {"seq_len": SEQ_LEN, "global_batch_size": BATCH}


def main():
    trainer = make_trainer()
    result = autotune.ray.tune_torch_trainer(trainer, space=SPACE, model=MODEL, **SIZES)
    autotune.ray.with_config(trainer, result.best.config).fit()


if __name__ == "__main__":
    main()
