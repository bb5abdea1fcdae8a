"""The native training loop: plain torch, every kind of parallelism that a config can ask for.

run_trial.py      one attempt on one rank: build, warm up, measure, stop
step.py           the training of a rank, step by step; what cannot be trained, with the law; which knobs the loop reads
task.py           what is trained: parts of the model, samples, loss (abstract)
tasks.py          of the decoder, and of a model that code builds, whose ranks may build it in turns
post_training.py  a step on sequences of unequal length
optimizer.py      optimizer and learning rate                      precision.py      number formats, loss scaling
token_file.py     the file of tokens, and what is wrong with it    data.py           the token stream
rendezvous.py     how ranks find one another                       faults.py         faults on order, for tests and drills
torch_version.py  the torch releases that work                     torch_internals.py  private names of torch, all of them

model/            decoder.py         the model: GPT-2 or Llama style, attention in memory that grows with the sequence alone
                  initialization.py  starting values of the weights
                  loss.py            cross entropy of whole or chunked logits
                  own_stage.py       a model that code builds, cut into stages; its loss in chunks
                  packed_sequences.py  documents that do not see each other      low_rank_adapters.py  LoRA
parallel/         parallelize.py     the model of a rank, the decoder or one that code builds: each kind of parallelism applied in turn
                  mesh.py            ranks as a mesh with the axes pp, dp, cp, tp
                  tensor_parallel.py  context_parallel.py  expert_parallel.py  pipeline_parallel.py
                  ring_attention.py  attention whose keys and values go round
                  data_parallel.py   ZeRO 0 and 1                    fully_sharded.py   ZeRO 2 and 3
                  gradient_sync.py   what both of them work on       collective_ops.py  differentiable collectives
                  activation_checkpointing.py    recomputation and compilation
measuring/        measure.py         time, peak memory and power of a rank; what torch's GPU allocator says
                  profile.py         where step time goes
                  gpu_state.py       clocks, temperature and throttling of a GPU
                  rank_evidence.py   phases of steps, for a diagnosis
                  progress.py        how far a rank has come: who is to blame when a gang hangs
"""
