"""The native training loop: plain torch, every kind of parallelism that a config can ask for.

run_trial.py       one attempt on one rank: build, warm up, measure, stop
step.py            the training of a rank, step by step
parallelize.py     the model of a rank: each kind of parallelism applied in turn
decoder.py         the model: GPT-2 or Llama style
measure.py         time, peak memory and power of a rank         profile.py    where the time of a step goes

mesh.py            ranks as a mesh with the axes pp, dp, cp, tp
tensor_parallel.py  context_parallel.py  expert_parallel.py  pipeline_parallel.py
data_parallel.py   ZeRO 0 and 1                                  fully_sharded.py    ZeRO 2 and 3
gradient_sync.py   what both of them work on                     collective_ops.py   differentiable collectives
activation_checkpointing.py    recomputation and compilation     precision.py        number formats, loss scaling

initialization.py  starting values of the weights                optimizer.py        optimizer and learning rate
data.py            the token stream                              validation.py       what cannot be trained, with the law
loop_knobs.py      which knobs the loop reads
rendezvous.py      how ranks find one another                    faults.py           faults on order, for tests and drills
torch_version.py   the torch releases that work                  torch_internals.py  private names of torch, all of them
"""
