"""The native training loop: plain torch, every kind of parallelism that a config can ask for.

run_trial.py       one attempt on one rank: build, warm up, measure, stop
step.py            the training of a rank, step by step; what cannot be trained, with the law; which knobs the loop reads
parallelize.py     the model of a rank, the decoder or one that code builds: each kind of parallelism applied in turn
decoder.py         the model: GPT-2 or Llama style
measure.py         time, peak memory and power of a rank         profile.py    where the time of a step goes
gpu_allocator.py   what torch's GPU allocator says               gpu_state.py  clocks, temperature and throttling of a GPU

task.py            what is trained: parts of the model, samples, loss (abstract)
tasks.py           of the decoder, and of a model that code builds, whose ranks may build it in turns
own_stage.py       such a model cut into stages                  own_chunked_loss.py  its loss in chunks

mesh.py            ranks as a mesh with the axes pp, dp, cp, tp
tensor_parallel.py  context_parallel.py  expert_parallel.py  pipeline_parallel.py
attention.py       attention in memory that grows with the sequence alone
ring_attention.py  attention whose keys and values go round      loss.py             cross entropy of whole or chunked logits
data_parallel.py   ZeRO 0 and 1                                  fully_sharded.py    ZeRO 2 and 3
gradient_sync.py   what both of them work on                     collective_ops.py   differentiable collectives
activation_checkpointing.py    recomputation and compilation     precision.py        number formats, loss scaling

packed_sequences.py  documents that do not see each other        low_rank_adapters.py  LoRA
initialization.py  starting values of the weights                optimizer.py        optimizer and learning rate
token_file.py      the file of tokens, and what is wrong with it
data.py            the token stream
progress.py        how far a rank has come: who is to blame when a gang hangs
rendezvous.py      how ranks find one another                    faults.py           faults on order, for tests and drills
torch_version.py   the torch releases that work                  torch_internals.py  private names of torch, all of them
"""
