"""Observes training in torch: optimizer steps, what was computed between them, and what they cost.

    step           from one step of the first optimizer to its next. Steps of other optimizers (a GAN's second, ZeRO's inner ones) are part of it;
                   a step without a preceding forward or backward pass belongs to the previous one; an optimizer that wraps another one steps when that one does
    micro-batches  calls of the outermost module with gradients (`passes`); if there are none (a module compiled in place), backward passes
    time           between events on the device, which do not block; without a device, between the ends of the steps
    skipped        a gradient scaler skipped the optimizer's step
    out of memory  an exception about memory was raised by the outermost module or a backward pass; or torch's allocator counted a failed allocation in a step in
                   which a call got no gradient or an optimizer did not finish. The program may catch the exception and continue

It uses torch's public hooks (`register_module_forward_pre_hook` and similar ones). Four functions
without hooks are wrapped: `torch.autograd.backward` and `grad`, `GradScaler.step`, and `__next__` of
the iterators of `DataLoader`. All hooks return at once while torch compiles. A forked process is
observed from its first call of a module with parameters, if its parent did not train; workers of
data loaders call no module.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from . import model_facts, profile
from .channel import Channel
from .graph_facts import Graph
from .passes import MOST_ROOTS, Call, Root, counted, sizing
from .phases import BACKWARD, DATA, EVALUATION, FORWARD, OPTIMIZER, Phases
from .versions import uses_cuda
from .watch import Watch

FLUSH_S = 0.05
"""steps completed within this time are reported together, seconds"""
FACTS_AT = (1, 3)
"""numbers of steps after which the facts are reported"""
LAST_EVENTS_S = 0.5
"""longest wait at exit for the device to finish the last steps, seconds"""
LOOKS_AT_WEIGHTS, SAMPLE, CHANGES = 64, 32, 3
"""largest number of backward passes without an optimizer step after which weights are compared;
number of weights compared; number of changes from which the program is taken to update weights
itself. SAM changes them once before its optimizer steps"""
MOST_CALLS = 256
"""number of calls of a wrapping optimizer, without a step of the wrapped one, after which its own
calls count as steps"""
LACKS_MEMORY = ("out of memory", "can't allocate memory")
"""texts in exceptions about memory that ran out, lower case"""
OWN_UPDATES = "the program updates its weights itself, without a torch optimizer"


class Seen:
    """What this process has observed, in the current step and in total."""

    def __init__(self, torch: Any, reports: Channel) -> None:
        self.pid = os.getpid()
        self.thread = 0
        """the training thread; before `has_trained`, the last thread that called a module"""
        self.has_trained = False
        self.depth = self.inside_backward = 0
        self.roots: dict[int, Root] = {}
        self.evaluated: dict[int, Any] = {}
        """references to outermost modules that were called without training in the first steps"""
        self.copied: int | None = None
        """number of weights in copies of the model; None before the first step"""
        self.is_replica_due = False
        """whether this rank's weights are to be compared with those of the others: when the pass
        after the first step begins, since some optimizers exchange weights after their step"""
        self.call: Call | None = None
        """current call of an outermost module that may train; None if there is none"""
        self.worked = self.ever_worked = False
        self.backwards = 0
        self.loaded = 0
        self.wait_s = 0.0
        self.began_s: float | None = None
        self.exploring = True
        self.calls = self.repeated = 0
        """number of calls of modules, and of those within backward passes (recomputation)"""
        self.autocast = ""
        self.graph = Graph()
        """autograd graph of the first backward pass"""
        self.workers: int | None = None
        self.off = False
        self.phases = Phases()
        self.entered: int | None = None
        """phase of the current call of an outermost module; None if there is none"""
        self.cpu_s = 0.0
        """processor seconds of this process at the end of the last step"""
        self.compiled = 0
        """number of frames that torch has compiled"""
        self.watch = Watch(self.phases, reports, torch)
        self.profile = profile.AskedProfile(torch)
        self.pipelined = False
        self.sample: tuple[Any, Any] | None = None
        """a parameter and a copy of some of its weights, while no optimizer has stepped; None
        otherwise"""
        self.looks = self.changes = 0
        self.stepping = 0
        """number of optimizers inside their `step`"""
        self.failed_allocations: int | None = None
        """total of failed allocations when last read; None before"""


class Steps:
    """Collects steps and reports them. Each is {"at": end on the monotonic clock, "s": seconds,
    "micro": micro-batches, "sequences": [possible counts], "tokens", "backwards", "wait_s",
    "skipped", "phases": see `phases`, "cpu": processor seconds of the process, "compile_s": seconds
    of these in torch's compiler}."""

    def __init__(self, torch: Any, reports: Channel) -> None:
        self._torch, self._reports = torch, reports
        self._first: Any | None = None
        self._first_id = 0
        self._other_steps = 0
        self._last_s: float | None = None
        self._last_event: Any = None
        self._pending: deque[tuple[dict[str, Any], Any, Any]] = deque()
        self._done: list[dict[str, Any]] = []
        self._flushed_s = 0.0
        self.count = 0
        self.optimizers: dict[int, Any] = {}
        self.heard: dict[int, int] = {}
        """number of calls by id of the optimizer"""
        self._calls_at_begin: dict[int, int] = {}
        """by id of a wrapping optimizer: total calls of all optimizers when its step began"""

    def begin(self, optimizer: Any) -> None:
        """Call before an optimizer steps."""
        kind = self._torch.optim.Optimizer
        if any(isinstance(value, kind) for value in getattr(optimizer, "__dict__", {}).values()):
            self._calls_at_begin[id(optimizer)] = sum(self.heard.values())

    def _only_accumulated(self, optimizer: Any) -> bool:
        """Whether a wrapping optimizer only accumulated gradients, because the wrapped one did not
        step."""
        begun = self._calls_at_begin.pop(id(optimizer), None)
        return begun == sum(self.heard.values()) and self.heard.get(id(optimizer), 0) < MOST_CALLS

    def hear(self, seen: Seen, optimizer: Any, *, skipped: bool) -> bool:
        """Call after an optimizer stepped or was skipped. Returns whether that ends a step."""
        key, waits = id(optimizer), self._only_accumulated(optimizer)
        self.heard[key] = self.heard.get(key, 0) + 1
        if waits:
            return False
        if key not in self.optimizers and len(self.optimizers) < MOST_ROOTS:
            self.optimizers[key] = weakref.ref(optimizer)
        if not seen.worked and seen.ever_worked:
            return False
        first = self._first() if self._first is not None else None
        if first is None or self._other_steps > 8:
            self._first, self._first_id, first = weakref.ref(optimizer), key, optimizer
        if first is not optimizer:
            self._other_steps += 1
            return False
        takes_turns, self._other_steps = self._other_steps > 0, 0
        self._end(seen, optimizer, skipped, takes_turns)
        return True

    def _end(self, seen: Seen, optimizer: Any, skipped: bool, takes_turns: bool) -> None:
        now_s = time.monotonic()
        begin_s = self._last_s if self._last_s is not None else seen.began_s
        micro, sequences, tokens = counted(
            seen.roots.values(),
            backwards=seen.backwards,
            loaded=seen.loaded,
            takes_turns=takes_turns,
        )
        step = {
            "at": now_s,
            "s": now_s - begin_s if begin_s is not None else 0.0,
            "micro": micro,
            "sequences": sequences,
            "tokens": tokens,
            "backwards": seen.backwards,
            "wait_s": round(seen.wait_s, 6),
            "skipped": skipped,
            "phases": seen.phases.take(),
            "cpu": round(time.process_time() - seen.cpu_s, 5),
            "compile_s": compiled(seen),
        }
        if seen.profile.disturbs():
            step["profiled"] = True
        seen.cpu_s = time.process_time()
        self._last_s = now_s
        self.count += 1
        event = _event(self._torch, optimizer)
        self._pending.append((step, self._last_event, event))
        self._last_event = event
        self.take()

    def take(self) -> None:
        """Moves steps that the device has finished to the report, and sends it if it is due."""
        while self._pending:
            step, before, event = self._pending[0]
            if event is not None:
                if not event.query():
                    break
                if before is not None:
                    step["s"] = before.elapsed_time(event) * 1e-3
            self._pending.popleft()
            self._done.append(step)
        now_s = time.monotonic()
        if self._done and (now_s - self._flushed_s >= FLUSH_S or self.count <= 8):
            self._flushed_s = now_s
            self.flush()

    def flush(self) -> None:
        """Reports the completed steps."""
        done, self._done = self._done, []
        if done:
            self._reports.send(
                "step", steps=done, rank=model_facts.rank_of(self._torch), **_memory(self._torch)
            )

    def finish(self) -> None:
        """Reports the remaining steps at exit."""
        end_s = time.monotonic() + LAST_EVENTS_S
        while self._pending and time.monotonic() < end_s:
            self.take()
            time.sleep(0.01)
        self.flush()


def compiled(seen: Seen) -> float:
    """Seconds spent in torch's compiler since the last call."""
    times = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None) or {}
    frames = times.get("_compile.compile_inner") or times.get("entire_frame_compile") or ()
    new = [float(seconds) for seconds in frames[seen.compiled :]]
    seen.compiled = len(frames)
    return round(sum(new), 5)


def watch(torch: Any, reports: Channel) -> Callable[[], Phases]:
    """Sets the hooks, once torch is imported. Returns a function that returns the phases of this
    process. Raises if torch lacks a hook."""
    # the probe's hooks cause this warning, which would appear in the program's output
    warnings.filterwarnings(
        "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
    )
    hooks = _Hooks(torch, reports)
    hooks.set()
    atexit.register(hooks.finish)
    model_facts.script_version()  # now, because the user may edit it while it runs
    reports.send("torch", version=str(torch.__version__), rank=model_facts.rank_of(torch))
    return lambda: hooks.seen.phases


class _Hooks:
    """The hooks that torch calls around each pass and optimizer step."""

    def __init__(self, torch: Any, reports: Channel) -> None:
        self._torch, self._reports = torch, reports
        self.seen, self._steps = Seen(torch, reports), Steps(torch, reports)
        self._profiler = self.seen.profile
        is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
        self._compiling: Callable[[], bool] = is_compiling or (lambda: False)

    def set(self) -> None:
        """Sets all hooks and wrappers."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._hook_modules()
        self._wrap_backward()
        _wrap_loaders(self._torch, self.seen)
        register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: self._before_step(optimizer)
        )
        register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: self._after_step(optimizer)
        )
        _wrap_scaler(self._torch, self._steps, self._after_step)

    def finish(self) -> None:
        """Reports what is left at exit."""
        if os.getpid() == self.seen.pid:
            if not self.seen.off:
                self._steps.finish()
            if self.seen.phases.thread:
                self.seen.watch.end()

    def _observe_fork(self, module: Any) -> bool:
        """Starts observing this forked process if it begins to train. Returns whether it does."""
        seen = self.seen
        if seen.has_trained or seen.off or next(module.parameters(), None) is None:
            return False
        vars(seen).update(vars(Seen(self._torch, self._reports)), profile=self._profiler)
        vars(self._steps).update(vars(Steps(self._torch, self._reports)))
        seen.thread, seen.depth = threading.get_ident(), 1
        return True

    def _compare_weights(self) -> None:
        seen = self.seen
        if self._steps.count or seen.looks >= LOOKS_AT_WEIGHTS:
            seen.sample = None
            return
        if seen.stepping:
            return
        seen.looks += 1
        try:
            seen.changes += _weights_changed(self._torch, seen)
            if seen.changes >= CHANGES:
                seen.looks = LOOKS_AT_WEIGHTS
                self._reports.send("own_updates", error=OWN_UPDATES)
        except Exception:  # the weights cannot be compared
            seen.looks = LOOKS_AT_WEIGHTS

    def _report_facts(self) -> None:
        """Reports the facts. Errors do not stop the timing of steps."""
        try:
            facts = model_facts.facts(self._torch, self.seen, self._steps.optimizers)
            self.seen.pipelined = (facts.get("degrees") or {}).get("pp", 1) > 1
            self._reports.send("facts", **facts)
        except Exception as error:
            self._reports.send("trouble", error="facts: " + repr(error)[:500])

    def _report_replica(self) -> None:
        if self.seen.is_replica_due:
            self.seen.is_replica_due = False
            if weights := model_facts.replica(self._torch, self.seen):
                self._reports.send("replica", weights=weights)

    def _before_step(self, optimizer: Any) -> None:
        if not (self._compiling() or self.seen.off):
            self.seen.stepping += 1
            self._steps.begin(optimizer)
            self.seen.phases.enter(OPTIMIZER)
            self._profiler.enter(profile.OPTIMIZER)

    def _after_step(self, optimizer: Any, skipped: bool = False) -> None:
        seen = self.seen
        if not skipped:
            seen.stepping = max(0, seen.stepping - 1)
            seen.phases.leave(OPTIMIZER)
            self._profiler.leave()
        if self._compiling() or seen.off or os.getpid() != seen.pid:
            return
        try:
            if self._steps.hear(seen, optimizer, skipped=skipped):
                self._end_step()
        except Exception as error:
            seen.off = True
            self._reports.send("trouble", error=repr(error)[:500])

    def _end_step(self) -> None:
        torch, seen, count = self._torch, self.seen, self._steps.count
        _report_failed_allocations(torch, seen, self._reports)
        seen.depth, seen.call, seen.worked, seen.entered = 0, None, False, None
        for root in seen.roots.values():
            root.step_ends()
        seen.backwards, seen.loaded, seen.wait_s = 0, 0, 0.0
        if count in FACTS_AT:
            self._report_facts()
        seen.is_replica_due = count == 1
        seen.exploring = count < max(FACTS_AT)
        seen.watch.paused = self._profiler.is_busy(count)
        if profile_report := self._profiler.step(count, pipelined=seen.pipelined):
            self._reports.send("profile", rank=model_facts.rank_of(torch), **profile_report)

    def _hook_modules(self) -> None:
        torch, seen, reports, compiling = self._torch, self.seen, self._reports, self._compiling
        from torch.nn.modules import module as modules

        is_grad_enabled, get_ident = torch.is_grad_enabled, threading.get_ident

        def before(module: Any, args: Any) -> None:
            if compiling() or seen.off:
                return
            if get_ident() != seen.thread:
                if seen.inside_backward:  # recomputation in a thread of the backward pass
                    seen.repeated += 1
                    return
                if seen.has_trained or not is_grad_enabled():
                    return
                seen.thread, seen.depth = get_ident(), 0
            seen.depth += 1
            if seen.inside_backward:
                seen.repeated += 1
                return
            if seen.depth > 1 and not (
                seen.exploring or (seen.call is not None and seen.call.is_open)
            ):
                return
            try:
                if seen.depth == 1:
                    trains = module.training and is_grad_enabled()
                    if os.getpid() == seen.pid or (trains and self._observe_fork(module)):
                        if trains:
                            _begin_outermost_call(torch, seen, module, args)
                            self._report_replica()
                        elif seen.exploring and len(seen.evaluated) < MOST_ROOTS:
                            seen.evaluated[id(module)] = weakref.ref(module)
                        seen.entered = FORWARD if trains else EVALUATION
                        seen.phases.enter(seen.entered)
                elif is_grad_enabled():
                    _look_inside_call(torch, seen, module, args)
            except Exception:
                seen.off = True

        def after(module: Any, args: Any, out: Any) -> None:
            if compiling() or seen.off or get_ident() != seen.thread:
                return
            if seen.depth > 0:
                seen.depth -= 1
            if seen.depth:
                return
            if out is None and not seen.inside_backward:
                _report_if_out_of_memory(reports, sys.exc_info()[1], "a forward pass")
            call, seen.call = seen.call, None
            if call is not None:
                try:
                    call.ends(torch, out)
                except Exception:
                    seen.off = True
            if seen.entered is not None:
                seen.phases.leave(seen.entered)
                seen.entered = None

        modules.register_module_forward_pre_hook(before)
        try:
            modules.register_module_forward_hook(after, always_call=True)
        except TypeError:  # an older torch: a call that raises counts as open until the next step
            modules.register_module_forward_hook(after)

    def _wrap_backward(self) -> None:
        torch, seen, reports, compiling = self._torch, self.seen, self._reports, self._compiling
        run, run_grad = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(run)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if compiling() or seen.off:
                return run(*args, **kwargs)
            if not seen.inside_backward:
                if threading.get_ident() != seen.thread:  # the other thread only tried the model
                    seen.thread, seen.depth, seen.call = threading.get_ident(), 0, None
                seen.backwards += 1
                seen.has_trained = True
                seen.worked = seen.ever_worked = True
                if not seen.graph.names:
                    try:
                        seen.graph.read(args[0] if args else kwargs.get("tensors"))
                    except Exception:
                        seen.graph.names = ["unknown"]
            try:
                with _backward_pass(seen, reports):
                    return run(*args, **kwargs)
            finally:
                if not seen.inside_backward:
                    self._compare_weights()

        @functools.wraps(run_grad)
        def grad(*args: Any, **kwargs: Any) -> Any:
            """Part of a backward pass, as for a gradient penalty, or the program's own backward
            pass; only its time is recorded."""
            if compiling() or seen.off or threading.get_ident() != seen.thread:
                return run_grad(*args, **kwargs)
            with _backward_pass(seen, reports):
                return run_grad(*args, **kwargs)

        torch.autograd.backward, torch.autograd.grad = backward, grad


def _begin_outermost_call(torch: Any, seen: Seen, module: Any, args: Any) -> None:
    root = seen.roots.get(id(module))
    if root is None or root.ref() is not module:
        if len(seen.roots) >= MOST_ROOTS:
            return
        root = seen.roots[id(module)] = Root(module)
    seen.profile.pass_begins()
    seen.worked = seen.ever_worked = True
    if seen.began_s is None:
        seen.began_s = time.monotonic()
        seen.cpu_s = time.process_time()
        seen.phases.begin()
        seen.watch.start()
    seen.call = Call(root)
    seen.call.look(torch, module, args)
    if seen.exploring:
        seen.calls += 1
        seen.autocast = seen.autocast or model_facts.autocast(torch)


def _look_inside_call(torch: Any, seen: Seen, module: Any, args: Any) -> None:
    if seen.exploring:
        seen.calls += 1
        if not seen.autocast and seen.calls < 64:
            seen.autocast = model_facts.autocast(torch)
    if seen.call is not None:
        seen.call.look(torch, module, args)


def _weights_changed(torch: Any, seen: Seen) -> bool:
    """Whether weights changed between backward passes although no optimizer stepped. Only for
    single-process programs, because sharded weights are freed and gathered."""
    if model_facts.is_distributed(torch) or _is_capturing(torch):
        return False
    if seen.sample is None:
        modules = [module for root in seen.roots.values() if (module := root.ref()) is not None]
        parameters = (p for module in modules for p in module.parameters())
        trained = [p for p in parameters if p.grad is not None and p.numel()]
        if trained:
            # the smallest, because most rows of an embedding have no gradient
            parameter = min(trained, key=lambda p: p.numel())
            seen.sample = parameter, parameter.detach().flatten()[:SAMPLE].clone()
        return False
    parameter, before = seen.sample
    current = parameter.detach().flatten()[:SAMPLE].clone()
    seen.sample = parameter, current
    return not torch.equal(current, before)


def _report_if_out_of_memory(reports: Channel, error: BaseException | None, where: str) -> None:
    """Reports an exception if it is about memory that ran out. The exception is not stored, because
    it holds the tensors of its frames."""
    text = str(error)
    if any(words in text.lower() for words in LACKS_MEMORY):
        reports.send("out_of_memory", error=text[:300], where=where)


def _report_failed_allocations(torch: Any, seen: Seen, reports: Channel) -> None:
    """Reports memory that ran out in this step outside of modules and backward passes, as in a
    loss. Libraries that try algorithms (cuDNN) cause failed allocations too, but leave nothing
    unfinished."""
    is_unfinished = seen.stepping or any(r.made.calls > r.used.calls for r in seen.roots.values())
    if not (is_unfinished or seen.failed_allocations is None) or not uses_cuda(torch):
        return
    before = seen.failed_allocations
    seen.failed_allocations = int(torch.cuda.memory_stats().get("num_ooms", 0))
    if before is not None and seen.failed_allocations > before:
        error = "torch's allocator counted a failed allocation, and the step did not finish"
        reports.send("out_of_memory", error=error, where="an optimizer step")


def _is_capturing(torch: Any) -> bool:
    """Whether a CUDA graph is being captured; waiting for the device is forbidden meanwhile."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def _backward_pass(seen: Seen, reports: Channel) -> Iterator[None]:
    """Marks the block as a backward pass."""
    seen.inside_backward += 1
    seen.phases.enter(BACKWARD)
    seen.profile.pass_begins()
    try:
        yield
    except Exception as error:
        if seen.inside_backward == 1:
            _report_if_out_of_memory(reports, error, "a backward pass")
        raise
    finally:
        seen.phases.leave(BACKWARD)
        seen.profile.pass_ends()
        seen.inside_backward -= 1


def _wrap_loaders(torch: Any, seen: Seen) -> None:
    iterator = getattr(getattr(torch.utils.data, "dataloader", None), "_BaseDataLoaderIter", None)
    if iterator is None:
        return
    draw = iterator.__next__

    @functools.wraps(draw)
    def timed_draw(self: Any) -> Any:
        begin_s = time.monotonic()
        seen.phases.enter(DATA)
        seen.profile.enter(profile.INPUT)
        try:
            batch = draw(self)
        finally:
            seen.phases.leave(DATA)
            seen.profile.leave()
        if not seen.off and os.getpid() == seen.pid:
            seen.wait_s += time.monotonic() - begin_s
            try:
                sizing_tensor, _ = sizing(torch, batch)
                seen.loaded += int(sizing_tensor.shape[0]) if sizing_tensor is not None else 0
                seen.workers = int(getattr(self, "_num_workers", 0))
            except Exception:
                seen.off = True
        return batch

    iterator.__next__ = timed_draw


def _wrap_scaler(torch: Any, steps: Steps, stepped: Callable[..., None]) -> None:
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:
        from torch.cuda.amp.grad_scaler import GradScaler
    run = GradScaler.step

    @functools.wraps(run)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps.heard.get(id(optimizer), 0)
        result = run(self, optimizer, *args, **kwargs)
        if steps.heard.get(id(optimizer), 0) == before:
            stepped(optimizer, skipped=True)
        return result

    GradScaler.step = step


def _event(torch: Any, optimizer: Any) -> Any:
    """An event recorded now on the device of the optimizer's parameters; None on a CPU or during
    graph capture."""
    parameter = next(model_facts.parameters_of([optimizer]), None)
    if parameter is None:
        return None
    kind = parameter.device.type
    device = getattr(torch, kind, None)
    if kind in ("cpu", "meta") or device is None or not hasattr(device, "Event"):
        return None
    if kind == "cuda" and torch.cuda.is_current_stream_capturing():
        return None
    event = device.Event(enable_timing=True)
    event.record(device.current_stream(parameter.device))
    return event


def _memory(torch: Any) -> dict[str, Any]:
    """Peak bytes allocated and reserved by torch's allocator on this process's device so far; empty
    without CUDA."""
    if not uses_cuda(torch):
        return {}
    return {
        "peak": int(torch.cuda.max_memory_allocated()),
        "reserved": int(torch.cuda.max_memory_reserved()),
    }
