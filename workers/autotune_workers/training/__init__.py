"""The native training loop: plain torch with every kind of parallelism that a config can have.

run_trial.py      one attempt on one rank: build, warm up, measure, stop
step.py           the training of a rank, and the checks that its config can be trained
task.py           abstract base of the model, data and loss of a training
tasks.py          tasks for the bundled decoder and for a model built by code
post_training.py  a step on sequences of unequal length
optimizer.py      optimizer and learning rate                      precision.py      precisions, loss scaling
token_file.py     reads and checks the file of tokens              data.py           the token stream
rendezvous.py     TCP store and process group of the ranks         faults.py         injected faults, for tests and drills
torch_version.py  the supported torch releases                     torch_internals.py  all private names of torch in use

model/            decoder.py         the bundled model: GPT-2 or Llama style, attention with memory linear in the sequence length
                  initialization.py  initial values of the weights
                  loss.py            cross entropy of whole or chunked logits
                  own_stage.py       pipeline stages of a model built by code; its chunked loss
                  packed_sequences.py  documents that do not attend to each other      low_rank_adapters.py  LoRA
parallel/         parallelize.py     builds a rank's part of the model, and applies each kind of parallelism
                  mesh.py            ranks as a mesh with the axes pp, dp, cp, tp
                  tensor_parallel.py  context_parallel.py  expert_parallel.py  pipeline_parallel.py
                  ring_attention.py  ring attention
                  data_parallel.py   ZeRO 0 and 1                    fully_sharded.py   ZeRO 2 and 3
                  gradient_sync.py   data structures of both         collective_ops.py  differentiable collectives
                  activation_checkpointing.py    recomputation and compilation
measuring/        measure.py         time, peak memory and power of a rank; readings of torch's GPU allocator
                  gpu_state.py       clocks, temperature and throttling of a GPU
                  rank_evidence.py   phases of steps, for a diagnosis
                  progress.py        a rank's progress, to find the rank that makes a gang hang
"""
