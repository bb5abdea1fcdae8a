"""What the last words of programs mean, in the manner of many libraries, launchers and schedulers:
each text with its kind and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from autotune.spec import Failure, FailureKind, MeasureSpec
from autotune.trainers.logs.formats import stock_reader
from autotune_workers.gang.deadlines import Deadlines
from autotune_workers.process.failure.cause import CauseReader
from autotune_workers.process.program.evidence import NodeEnd, explain
from autotune_workers.process.program.state import ProgramTrial
from tests.workers.requests import failure_of, request

OOM, DIVERGED, HANG = FailureKind.OUT_OF_MEMORY, FailureKind.DIVERGED, FailureKind.HANG
INVALID, LOST, ERROR, TIMEOUT = (
    FailureKind.INVALID,
    FailureKind.WORKER_LOST,
    FailureKind.ERROR,
    FailureKind.TIMEOUT,
)


class Text(NamedTuple):
    """A log and its verdict."""

    kind: FailureKind
    says: str
    """words of the message"""
    log: str
    code: int = 1
    steps: int = 0
    kernel_oom: bool = False


def raised(exception: str, code: str = "step(batch)") -> str:
    """A traceback that ends in this exception."""
    return f'Traceback (most recent call last):\n  File "train.py", line 71, in <module>\n    {code}\n{exception}'


def verdict(text: Text) -> Failure:
    reader = CauseReader()
    lines = text.log.splitlines()
    for line in lines:
        reader.hear(line, text.steps)
    end = NodeEnd(node=0, code=text.code, log_tail=tuple(lines[-30:]), kernel_oom=text.kernel_oom)
    evidence = explain([end], [reader], text.steps)
    assert evidence is not None
    return evidence.failure()


ENGINE = "(EngineCore_DP0 pid=7) ERROR 10-25 13:08:43 [core.py:708] "
"""what vLLM's logger has before each line"""
CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
INITIALIZED = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
CREATED = "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::WorkerDict.__init__() (pid=9, ip=10.0.0.1, actor_id=a1)"


def in_engine(exception: str, package: str = "vllm") -> str:
    """A traceback that ends in the code of an engine."""
    return raised(exception).replace("train.py", f"/site-packages/{package}/worker.py")


def logged(text: str) -> str:
    return "\n".join(ENGINE + line for line in text.splitlines())


HARDWARE = [
    Text(LOST, "lost its GPU", raised("RuntimeError: CUDA error: uncorrectable ECC error encountered")),
    Text(LOST, "lost its GPU", raised("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution"), steps=3),
    Text(ERROR, "unspecified launch failure", raised("torch.AcceleratorError: CUDA error: unspecified launch failure")),
]  # fmt: skip
POST_TRAINING = [
    Text(OOM, "ran out of memory in the generation engine vllm", in_engine("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.05 GiB")),
    Text(OOM, "ran out of memory in the generation engine sglang", in_engine("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "sglang")),
    Text(OOM, "ran out of memory: CUDA", raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB")),
    Text(OOM, "No available memory for the cache blocks", logged(in_engine(CACHE)) + "\n" + raised(INITIALIZED)),
    Text(OOM, "KV cache is needed", raised("ValueError: To serve at least one request with the models's max seq len (32768), (2.00 GB KV cache is needed, which is larger than the available KV cache memory (0.78 GB).")),
    Text(OOM, "Free memory on device", raised("ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory utilization (0.92, 21.67 GiB).")),
    Text(ERROR, "EngineCore encountered an issue", raised("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."), steps=3),
    Text(HANG, "waited for the generation engine", raised("TimeoutError: RPC call to sample_tokens timed out."), steps=3),
    Text(HANG, "timed out", raised("ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready."), steps=3),
    Text(HANG, "WorkNCCL(SeqNum=9, OpType=BROADCAST", "[rank0]:[E101 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", steps=3, code=-6),
    Text(INVALID, "must be greater than the sequence length", raised("AssertionError: max_token_len must be greater than the sequence length. Got max_token_len=16384 and max_seq_len=40960")),
    Text(INVALID, "must be divisible by minimal possible batch size", raised("AssertionError: real_train_batch_size (8) must be divisible by minimal possible batch size (16)")),
    Text(INVALID, "normalized ppo_mini_batch_size 3", raised("AssertionError: normalized ppo_mini_batch_size 3 should be divisible by ppo_micro_batch_size_per_gpu 2")),
    Text(INVALID, "ppo_mini_batch_size 0", raised("AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization")),
    Text(INVALID, "rollout world_size: 1", raised("AssertionError: rollout world_size: 1 is not divisible by infer_tp: 2")),
    Text(INVALID, "only support equal chunk", raised("AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.")),
    Text(INVALID, "Data dict size (2)", raised("AssertionError: Data dict size (2) is not a multiple of the provided microbatch size (8)")),
    Text(INVALID, "The global train batch size (7 x 1)", raised("ValueError: The global train batch size (7 x 1) must be evenly divisible by the number of generations per prompt (8).")),
    Text(INVALID, "Check batch related parameters", raised("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 18 * 7")),
    Text(ERROR, "only support equal chunk", raised("AssertionError: only support equal chunk. Got size of DataProto 510 and chunk 4."), steps=5),
    Text(INVALID, "ppo_mini_batch_size 0", raised(f"{CREATED}\n  File \"fsdp_workers.py\", line 9, in __init__\n    check()\nAssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization")),
    Text(OOM, "CUDA out of memory", raised(f"{CREATED}\n  File \"fsdp_workers.py\", line 9, in __init__\n    build()\ntorch.OutOfMemoryError: CUDA out of memory.")),
    Text(LOST, "lost a process", "\n".join(f"(TaskRunner pid=4) {line}" for line in raised("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerDict\nThe actor is dead because its worker process has died. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.").splitlines()), steps=3),
]  # fmt: skip
MEMORY = [
    Text(OOM, "CUDA out of memory", raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB")),
    Text(OOM, "HIP out of memory", raised("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 512 MiB")),
    Text(OOM, "hipErrorOutOfMemory", raised("RuntimeError: HIP error: hipErrorOutOfMemory")),
    Text(OOM, "CUBLAS_STATUS_ALLOC_FAILED", raised("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    Text(OOM, "CUDNN_STATUS_ALLOC_FAILED", raised("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
    Text(OOM, "miopenStatusAllocFailed", raised("RuntimeError: miopenStatusAllocFailed")),
    Text(OOM, "NCCL error in", raised("RuntimeError: NCCL error in: NCCLUtils.cpp:88, internal error, NCCL version 2.21.5\nncclInternalError: Internal check failed.\nLast error:\nFailed to CUDA calloc async 608 bytes")),
    Text(OOM, "NCCL error in", raised("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled cuda error, NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'")),
    Text(OOM, "Failed to CUDA host alloc", raised("RuntimeError: Failed to CUDA host alloc 256 bytes")),
    Text(OOM, "Cuda failure 2 'out of memory'", "n1:71:90 [2] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'\n" + raised("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5")),
    Text(OOM, "node running low on memory", raised("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.")),
    Text(OOM, "CUDA out of memory", raised("ray.exceptions.RayTaskError(OutOfMemoryError): ray::fit() (pid=71, ip=10.0.0.2)\n  File \"loop.py\", line 4, in fit\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")),
    Text(OOM, "CUDA out of memory", "\n".join(f"(RayTrainWorker pid=71, ip=10.0.0.2) {line}" for line in raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB").splitlines())),
    Text(OOM, "Unable to allocate", raised("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 31.2 GiB for an array with shape (65536, 65536)")),
    Text(OOM, "Cannot allocate memory", raised("OSError: [Errno 12] Cannot allocate memory")),
    Text(OOM, "Out of memory while trying", raised("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.")),
    Text(OOM, "Triton Error [CUDA]: out of memory", raised("RuntimeError: Triton Error [CUDA]: out of memory")),
    Text(OOM, "No executable batch size", raised("RuntimeError: No executable batch size found, reached zero.")),
    Text(OOM, "DefaultCPUAllocator", raised("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.")),
    Text(OOM, "std::bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc", code=-6),
    Text(OOM, "Out Of Memory", "srun: error: nid001: task 5: Out Of Memory\nsrun: Terminating StepId=9.0", code=137),
    Text(OOM, "oom_kill event", "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have been OOM Killed.", code=1),
    Text(OOM, "ran out of memory", "step 3\nKilled", code=137, kernel_oom=True),
    Text(OOM, "ran out of memory", "exits with return code = -9", code=247, kernel_oom=True),
    Text(OOM, "ran out of memory", raised("RuntimeError: DataLoader worker (pid 8812) is killed by signal: Killed."), kernel_oom=True),
]  # fmt: skip
NOT_MEMORY = [
    Text(ERROR, "ValueError: bad record", "hint: if you run out of memory, lower --batch-size\n" + raised("ValueError: bad record in shard 3")),
    Text(ERROR, "AssertionError: shapes", "tip: reduce the batch to avoid CUDA out of memory errors\n" + raised("AssertionError: shapes differ")),
    Text(ERROR, "raised ValueError", raised("ValueError: batch 512 might run out of memory, refusing")),
    Text(ERROR, "exit code 2", "to prevent out of memory errors, expandable segments are on\nno data found", code=2),
    Text(ERROR, "KeyError", "before: CUDA out of memory was handled, retrying with half\n" + raised("KeyError: 'input_ids'")),
    Text(ERROR, "out of shared memory", raised("RuntimeError: DataLoader worker (pid 8812) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.")),
    Text(ERROR, "out of resource", raised("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.")),
    Text(HANG, "Watchdog caught", "[rank2]:[E1128 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST) ran for 1800005 milliseconds before timing out.\n" + "\n".join(f"[rank2]: {line}" for line in raised("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.").splitlines())),
    Text(ERROR, "No space left", raised("OSError: [Errno 28] No space left on device: 'ckpt.pt'")),
]  # fmt: skip
NOT_A_NUMBER = [
    Text(DIVERGED, "Unexpected result nan", raised("RuntimeError: Unexpected result nan (message='found NaN in local forward loss calculation')"), steps=3),
    Text(DIVERGED, "found NaN in local grad norm", raised("AssertionError: Rank 5: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 5"), steps=3),
    Text(DIVERGED, "already at minimum", raised("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."), steps=3),
    Text(DIVERGED, "Minimum loss scale reached", raised("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate."), steps=3),
    Text(DIVERGED, "gradients are Nan/Inf", raised("FloatingPointError: gradients are Nan/Inf"), steps=3),
    Text(DIVERGED, "Train loss contains a NaN", raised("RuntimeError: Train loss contains a NaN."), steps=9),
    Text(DIVERGED, "`training_step` is nan", raised("ValueError: The loss returned in `training_step` is nan."), steps=9),
    Text(DIVERGED, "Detected nan", raised("ValueError: Detected nan and/or inf values in `layers.3.weight`. Check your forward pass for numerically unstable operations."), steps=9),
    Text(DIVERGED, "is non-finite", raised("RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped."), steps=2),
    Text(DIVERGED, "returned nan values", raised("RuntimeError: Function 'SoftmaxBackward0' returned nan values in its 0th output."), steps=2),
    Text(DIVERGED, "infinite or NaN", raised("FloatingPointError: Loss became infinite or NaN at iteration=70!\nloss_dict = {'loss': nan}"), steps=70),
    Text(DIVERGED, "nan loss encountered", raised("ValueError: nan loss encountered"), steps=4),
    Text(DIVERGED, "AssertionError", raised("AssertionError", "assert torch.isfinite(loss), f'step'"), steps=4),
    Text(DIVERGED, "Loss is nan, stopping", "step 4\nLoss is nan, stopping training", steps=4),
    Text(DIVERGED, "probability tensor", raised("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"), steps=4),
    Text(ERROR, "cannot convert float NaN", raised("ValueError: cannot convert float NaN to integer")),
    Text(ERROR, "Input X contains NaN", raised("ValueError: Input X contains NaN.")),
    Text(ERROR, "No inf checks", raised("AssertionError: No inf checks were recorded for this optimizer.")),
    Text(ERROR, "unexpected keyword", raised("TypeError: __init__() got an unexpected keyword argument 'check nan in loss'")),
]  # fmt: skip
DEATHS = [
    Text(LOST, "SIGKILL (exit code 137)", "step 3 loss 2.2", code=137, steps=3),
    Text(LOST, "SIGKILL (exit code 247)", "step 3 loss 2.2", code=247, steps=3),
    Text(LOST, "killed by SIGKILL", "[2026-11-28 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9", code=1),
    Text(ERROR, "SIGSEGV", "[2026-11-28 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'train.py'] exits with return code = -11", code=1),
    Text(ERROR, "crashed with SIGSEGV", "Segmentation fault (core dumped)", code=139),
    Text(LOST, "killed by SIGKILL", raised("subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.")),
    Text(LOST, "rank 3 during start was killed by SIGKILL", "mpirun noticed that process rank 3 with PID 71 on node n1 exited on signal 9 (Killed).", code=137),
    Text(LOST, "killed by SIGKILL", "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 9\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", code=9),
    Text(LOST, "rank 3", "srun: error: n1: task 3: Killed", code=137),
    Text(LOST, "killed by SIGKILL", raised("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL")),
    Text(LOST, "killed by SIGKILL", "[rank: 1] Child process with PID 71 terminated with code -9. Forcefully terminating all other processes to avoid zombies", code=1),
    Text(LOST, "died unexpectedly", raised("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\nSome causes: (1) it was killed by the OOM killer due to high memory usage.")),
    Text(LOST, "crashed unexpectedly", raised("ray.exceptions.WorkerCrashedError: The worker died unexpectedly: it crashed unexpectedly.")),
    Text(LOST, "PREEMPTION", "slurmstepd: error: *** STEP 71.0 ON n1 CANCELLED AT 2026-11-28T03:00:00 DUE TO PREEMPTION ***", code=143),
    Text(TIMEOUT, "TIME LIMIT", "slurmstepd: error: *** JOB 71 ON n1 CANCELLED AT 2026-11-28T03:00:00 DUE TO TIME LIMIT ***", code=143),
    Text(LOST, "got signal: 15", raised("torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: 15"), code=1),
    Text(LOST, "SIGTERM (exit code 143)", "step 3", code=143, steps=3),
    Text(ERROR, "exit code 255", "step 3", code=255, steps=3),
]  # fmt: skip
REFUSALS = [
    Text(INVALID, "unrecognized arguments", "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --batch 4", code=2),
    Text(INVALID, "invalid choice", "usage: train.py [-h]\ntrain.py: error: argument --dtype: invalid choice: 'fp8' (choose from 'bf16')", code=2),
    Text(INVALID, "Parser key", 'usage: main.py [-h]\nerror: Parser key "trainer.precision":\n  Does not validate against any of the Union subtypes', code=2),
    Text(INVALID, "is not expected", "usage: main.py [-h]\nmain.py: error: Key \"optimizer.lrr\" is not expected", code=2),
    Text(INVALID, "validation error", raised("pydantic_core._pydantic_core.ValidationError: 1 validation error for TrainConfig\nbatch_size\n  Input should be greater than 0")),
    Text(INVALID, "validation errors", raised("pydantic.v1.error_wrappers.ValidationError: 2 validation errors for Job")),
    Text(INVALID, "Key 'bach_size'", raised("omegaconf.errors.ConfigAttributeError: Key 'bach_size' is not in struct")),
    Text(INVALID, "could not be converted", raised("omegaconf.errors.ValidationError: Value 'many' of type 'str' could not be converted to Integer")),
    Text(INVALID, "Missing mandatory value", raised("omegaconf.errors.MissingMandatoryValue: Missing mandatory value: data.path")),
    Text(INVALID, "Could not override", "Could not override 'trainer.lrr'.\nTo append to your config use +trainer.lrr=1\nKey 'lrr' is not in struct", code=1),
    Text(INVALID, "Cannot find primary config", raised("hydra.errors.MissingConfigException: Cannot find primary config 'train'.")),
    Text(INVALID, "Error parsing override", raised("hydra.errors.OverrideParseException: Error parsing override 'lr=[1'")),
    Text(INVALID, "Unrecognized options", "╭─ Unrecognized options ─────────────╮\n│ Unrecognized options: --bach 4     │\n╰────────────────────────────────────╯", code=2),
    Text(INVALID, "Parsing error", "╭─ Parsing error ────────────────────╮\n│ Argument --steps: 'many' is no int │\n╰────────────────────────────────────╯", code=2),
    Text(INVALID, "No such option", "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --bach", code=2),
    Text(INVALID, "Missing option", "Usage: train.py [OPTIONS]\n\nError: Missing option '--data'.", code=2),
    Text(INVALID, "Flags parsing error", "FATAL Flags parsing error: flag --batch_size=many: invalid literal for int() with base 10", code=1),
    Text(INVALID, "batch_size", raised("absl.flags._exceptions.IllegalFlagValueError: flag --batch_size=many: invalid literal")),
    Text(INVALID, "Could not consume arg", "ERROR: Could not consume arg: --bach\nUsage: train.py <flags>", code=2),
    Text(INVALID, "not used by the HfArgumentParser", raised("ValueError: Some keys are not used by the HfArgumentParser: ['bach']")),
    Text(INVALID, "required", "usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data", code=2),
    Text(ERROR, "ValidationError", raised("pydantic_core._pydantic_core.ValidationError: 1 validation error for Record"), steps=5),
]  # fmt: skip
WAITING = [
    Text(HANG, "Watchdog caught", "[rank1]:[E1128 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600013 milliseconds before timing out.", code=-6, steps=5),
    Text(HANG, "Heartbeat monitor timed out", "[PG ID 0 Rank 3] Heartbeat monitor timed out! Process will be terminated after dumping debug info.", code=-6, steps=5),
    Text(HANG, "watchdog got stuck", "[rank3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.", code=134, steps=5),
    Text(HANG, "Timed out after 1801", raised("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.")),
    Text(HANG, "client socket has timed out", raised("torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (10.0.0.1, 29500).")),
    Text(HANG, "RendezvousTimeoutError", raised("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")),
    Text(HANG, "Socket Timeout", raised("torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout")),
    Text(HANG, "monitoredBarrier", raised("RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms")),
    Text(HANG, "GetTimeoutError", raised("ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.")),
    Text(HANG, "NCCL communicator was aborted", raised("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1. Original reason for failure was: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"), steps=5),
    Text(ERROR, "ReadTimeout", raised("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub', port=443): Read timed out.")),
    Text(ERROR, "TimeoutExpired", raised("subprocess.TimeoutExpired: Command 'nvidia-smi' timed out after 5 seconds")),
]  # fmt: skip
ALL = [*HARDWARE, *POST_TRAINING, *MEMORY, *NOT_MEMORY, *NOT_A_NUMBER, *DEATHS, *REFUSALS, *WAITING]


@pytest.mark.parametrize("text", ALL, ids=[f"{text.kind.name}-{text.says}" for text in ALL])
def test_a_text_means_its_kind(text: Text) -> None:
    found = verdict(text)
    assert found.kind is text.kind, found.message
    assert text.says in f"{found.message} {found.exception}"
    assert found.log_tail or text.code < 0 or text.log == "", "the evidence is kept"


def test_the_exception_of_a_rank_counts_and_not_what_its_launcher_did_to_the_others() -> None:
    log = (
        raised("ValueError: bad record")
        + "\n[launch.py:325:sigkill_handler] ['python'] exits with return code = -9"
    )
    assert "bad record" in verdict(Text(ERROR, "", log)).message


def test_memory_that_the_kernel_took_counts_more_than_the_exception_of_a_peer() -> None:
    log = raised("ValueError: a worker is missing") + "\nKilled"
    found = verdict(Text(OOM, "", log, code=1, kernel_oom=True))
    assert found.kind is OOM
    assert verdict(Text(ERROR, "", log, code=1)).kind is ERROR


def silent(*lines: str, compile_: bool = False) -> Failure:
    """Of an attempt whose log has no step within its first deadline, and whose launcher answers our
    SIGTERM with a traceback."""
    asked = request(0, dp=2, trainer="command")
    trial = ProgramTrial(
        replace(asked, config=replace(asked.config, compile=compile_)), [stock_reader()], 0.0
    )
    for line in lines:
        trial.hear([(0.0, line)], 0.0)
    trial.tick(asked.measure.start_timeout_s)
    answer = raised(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: 15"
    )
    for line in answer.splitlines():
        trial.hear([(0.0, line)], 0.0)
    tail = (*lines, *answer.splitlines())
    return failure_of(trial.end([NodeEnd(node=0, code=1, was_told=True, log_tail=tail)]))


@pytest.mark.parametrize(
    "line",
    [
        "AUTOTUNE mm(4096x4096, 4096x11008)",
        "Emitting ninja build file /tmp/cpu_adam/build.ninja...",
        "[1/3] /usr/local/cuda/bin/nvcc -c fused_adam.cu",
        "I1128 torch/_inductor/compile_fx.py:960] compiling graph 0",
    ],
)
def test_a_program_that_still_compiles_is_late_and_does_not_hang(line: str) -> None:
    found = silent("loading weights", line)
    assert found.kind is TIMEOUT
    assert "still compiling" in found.message
    assert "raise measure.start_timeout_s" in found.message


def test_a_config_with_compile_is_told_that_its_first_step_may_be_compiling() -> None:
    assert silent("loading weights", compile_=True).kind is TIMEOUT
    assert silent("loading weights").kind is HANG
    steps = [f"it {i} took {1.5 + i / 90:.3f} sec, loss {9 - i / 7:.3f}" for i in range(5)]
    assert silent(*steps, compile_=True).kind is HANG, "its steps came, and nobody read them"
    deadlines = Deadlines(MeasureSpec(start_timeout_s=9.0), 0.0, compiles=True)
    kind, _ = deadlines.missed(9.0, 0) or (None, "")
    assert kind is TIMEOUT


def test_our_own_sigterm_is_not_shown_as_the_failure_of_the_program() -> None:
    found = silent("loading weights")
    assert found.log_tail == ("loading weights",)
    assert "signal" not in f"{found.message} {found.exception}"
