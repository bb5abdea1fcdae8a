"""Watches a training in torch: optimizer steps, what was computed between them, and what they cost.

    step           from one step of the first optimizer to its next one. Other optimizers (a GAN's second, the inner ones of ZeRO) step within it;
                   a step without any forward or backward pass before it belongs to the last one; an optimizer that holds another one steps where that one does
    micro-batches  calls of the outermost module with gradients (`passes`); without any (a module that is compiled in place), backward passes
    time           between events on the device, which hold nobody up; without a device, between the ends of the steps
    skipped        a gradient scaler left its optimizer out
    out of memory  an exception that says so has left the outermost module or a backward pass; or, as torch's allocator counts them, one was raised in a step in
                   which a call got no gradient, or an optimizer did not end its step. The program may catch it and go on

Hooks are those that torch offers to everybody (`register_module_forward_pre_hook` and its like);
four functions are wrapped, for which there are none: `torch.autograd.backward` and `grad`,
`GradScaler.step` and `__next__` of the iterators of `DataLoader`. All of them return at once while
torch compiles. A process that was forked is watched from its first call of a module with parameters, if the one that
forked it did not train: workers of loaders call none.
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
"""steps are reported together so long"""
FACTS_AT = (1, 3)
"""steps after which the facts are reported"""
LAST_EVENTS_S = 0.5
"""time that the device gets at the end to finish the last steps"""
LOOKS_AT_WEIGHTS, SAMPLE, CHANGES = 64, 32, 3
"""backward passes without an optimizer step after which a few weights are compared, how many
weights, and how often they must have changed: SAM changes them once before its optimizer steps"""
MOST_CALLS = 256
"""calls of an optimizer that holds another in which that one may not step, before they count
themselves"""
LACKS_MEMORY = ("out of memory", "can't allocate memory")
"""what exceptions say that were raised because memory ran out"""
OWN_UPDATES = "the program updates its weights itself, without a torch optimizer"


class Seen:
    """What this process has seen, of the step that it is in and in all."""

    def __init__(self, torch: Any, reports: Channel) -> None:
        self.pid = os.getpid()
        self.thread = 0
        """the one that trains; the last one that called a module before `has_trained`"""
        self.has_trained = False
        self.depth = self.inside_backward = 0
        self.roots: dict[int, Root] = {}
        self.call: Call | None = None
        """of the outermost module that runs now, if it may train"""
        self.worked = self.ever_worked = False
        self.backwards = 0
        self.loaded = 0
        self.wait_s = 0.0
        self.began_s: float | None = None
        self.exploring = True
        self.calls = self.repeated = 0
        """calls of modules, and those within backward passes"""
        self.autocast = ""
        self.graph = Graph()
        """of the first backward pass"""
        self.workers: int | None = None
        self.off = False
        self.phases = Phases()
        self.entered: int | None = None
        """the phase of the outermost module that runs"""
        self.cpu_s = 0.0
        """processor time of this process at the end of the last step"""
        self.compiled = 0
        """frames that torch has compiled"""
        self.watch = Watch(self.phases, reports, torch)
        self.profile = profile.AskedProfile(torch)
        self.pipelined = False
        self.sample: tuple[Any, Any] | None = None
        """a parameter of a program in which no optimizer has stepped yet, and some of its weights
        as they were"""
        self.looks = self.changes = 0
        self.stepping = 0
        """optimizers that step now"""
        self.failed_allocations: int | None = None
        """of all steps until the last one that was looked at"""


class Steps:
    """The steps, on their way to the channel. Each is {"at": end on the monotonic clock, "s":
    seconds, "micro", "sequences": [possible counts], "tokens", "backwards", "wait_s", "skipped",
    "phases": see `phases`, "cpu": processor seconds of the process, "compile_s": of them in torch's
    compiler}."""

    def __init__(self, torch: Any, reports: Channel) -> None:
        self._torch, self._reports = torch, reports
        self._first: Any | None = None
        self._first_id = 0
        self._others = 0
        self._last_s: float | None = None
        self._last_event: Any = None
        self._pending: deque[tuple[dict[str, Any], Any, Any]] = deque()
        self._done: list[dict[str, Any]] = []
        self._flushed_s = 0.0
        self.count = 0
        self.optimizers: dict[int, Any] = {}
        self.heard: dict[int, int] = {}
        """calls by optimizer"""
        self._begun: dict[int, int] = {}
        """by optimizer that holds another: calls of all when it began to step"""

    def begin(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        kind = self._torch.optim.Optimizer
        if any(isinstance(value, kind) for value in getattr(optimizer, "__dict__", {}).values()):
            self._begun[id(optimizer)] = sum(self.heard.values())

    def _waits(self, optimizer: Any) -> bool:
        """Whether it only accumulates now: the one that it holds has not stepped within its
        step."""
        begun = self._begun.pop(id(optimizer), None)
        return begun == sum(self.heard.values()) and self.heard.get(id(optimizer), 0) < MOST_CALLS

    def hear(self, seen: Seen, optimizer: Any, *, skipped: bool) -> bool:
        """An optimizer has stepped, or was left out; whether that ends a step."""
        key, waits = id(optimizer), self._waits(optimizer)
        self.heard[key] = self.heard.get(key, 0) + 1
        if waits:
            return False
        if key not in self.optimizers and len(self.optimizers) < MOST_ROOTS:
            self.optimizers[key] = weakref.ref(optimizer)
        if not seen.worked and seen.ever_worked:
            return False
        first = self._first() if self._first is not None else None
        if first is None or self._others > 8:
            self._first, self._first_id, first = weakref.ref(optimizer), key, optimizer
        if first is not optimizer:
            self._others += 1
            return False
        takes_turns, self._others = self._others > 0, 0
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
        """Takes over the steps that the device has finished, and reports them when it is time."""
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
        """Reports what is done."""
        done, self._done = self._done, []
        if done:
            self._reports.send(
                "step", steps=done, rank=model_facts.rank_of(self._torch), **_memory(self._torch)
            )

    def finish(self) -> None:
        """At the end of the process."""
        end_s = time.monotonic() + LAST_EVENTS_S
        while self._pending and time.monotonic() < end_s:
            self.take()
            time.sleep(0.01)
        self.flush()


def compiled(seen: Seen) -> float:
    """Seconds that torch's compiler took since it was last asked."""
    times = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None) or {}
    frames = times.get("_compile.compile_inner") or times.get("entire_frame_compile") or ()
    new = [float(seconds) for seconds in frames[seen.compiled :]]
    seen.compiled = len(frames)
    return round(sum(new), 5)


def watch(torch: Any, reports: Channel) -> Callable[[], Phases]:
    """Sets the hooks; called once torch is imported. Returns a function that gives the phases of this
    process. Raises what torch raises when it lacks a hook."""
    # ours are such hooks; that they fire once more is known here, and the program's output stays
    # its own
    warnings.filterwarnings(
        "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
    )
    hooks = _Hooks(torch, reports)
    hooks.set()
    atexit.register(hooks.finish)
    model_facts.script_version()  # now, because a person may edit it while it runs
    reports.send("torch", version=str(torch.__version__), rank=model_facts.rank_of(torch))
    return lambda: hooks.seen.phases


class _Hooks:
    """What torch calls around each pass and each optimizer step."""

    def __init__(self, torch: Any, reports: Channel) -> None:
        self._torch, self._reports = torch, reports
        self.seen, self._steps = Seen(torch, reports), Steps(torch, reports)
        self._profiler = self.seen.profile
        is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
        self._compiling: Callable[[], bool] = is_compiling or (lambda: False)

    def set(self) -> None:
        """Sets them all."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._hook_modules()
        self._wrap_backward()
        _wrap_loaders(self._torch, self.seen)
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._steps_now(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._stepped(optimizer))
        _wrap_scaler(self._torch, self._steps, self._stepped)

    def finish(self) -> None:
        """At the end of the process: tells what is left."""
        if os.getpid() == self.seen.pid:
            if not self.seen.off:
                self._steps.finish()
            if self.seen.phases.thread:
                self.seen.watch.end()

    def _adopt(self, module: Any) -> bool:
        """Whether this process, which was forked, is watched from now on."""
        seen = self.seen
        if seen.has_trained or seen.off or next(module.parameters(), None) is None:
            return False
        vars(seen).update(vars(Seen(self._torch, self._reports)), profile=self._profiler)
        vars(self._steps).update(vars(Steps(self._torch, self._reports)))
        seen.thread, seen.depth = threading.get_ident(), 1
        return True

    def _look_at_weights(self) -> None:
        seen = self.seen
        if self._steps.count or seen.looks >= LOOKS_AT_WEIGHTS:
            seen.sample = None
            return
        if seen.stepping:
            return
        seen.looks += 1
        try:
            seen.changes += _changes_itself(self._torch, seen)
            if seen.changes >= CHANGES:
                seen.looks = LOOKS_AT_WEIGHTS
                self._reports.send("own_updates", error=OWN_UPDATES)
        except Exception:  # weights that cannot be compared: nothing is known of them
            seen.looks = LOOKS_AT_WEIGHTS

    def _tell_facts(self) -> None:
        """Steps are timed whether or not the model can be described."""
        try:
            facts = model_facts.facts(self._torch, self.seen, self._steps.optimizers)
            self.seen.pipelined = (facts.get("degrees") or {}).get("pp", 1) > 1
            self._reports.send("facts", **facts)
        except Exception as error:
            self._reports.send("trouble", error="facts: " + repr(error)[:500])

    def _steps_now(self, optimizer: Any) -> None:
        if not (self._compiling() or self.seen.off):
            self.seen.stepping += 1
            self._steps.begin(optimizer)
            self.seen.phases.enter(OPTIMIZER)
            self._profiler.enter(profile.OPTIMIZER)

    def _stepped(self, optimizer: Any, skipped: bool = False) -> None:
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
        _look_at_allocations(torch, seen, self._reports)
        seen.depth, seen.call, seen.worked, seen.entered = 0, None, False, None
        for root in seen.roots.values():
            root.step_ends()
        seen.backwards, seen.loaded, seen.wait_s = 0, 0, 0.0
        if count in FACTS_AT:
            self._tell_facts()
        seen.exploring = count < max(FACTS_AT)
        seen.watch.paused = self._profiler.is_busy(count)
        if told := self._profiler.step(count, pipelined=seen.pipelined):
            self._reports.send("profile", rank=model_facts.rank_of(torch), **told)

    def _hook_modules(self) -> None:
        torch, seen, reports, compiling = self._torch, self.seen, self._reports, self._compiling
        from torch.nn.modules import module as modules

        is_grad_enabled, get_ident = torch.is_grad_enabled, threading.get_ident

        def before(module: Any, args: Any) -> None:
            if compiling() or seen.off:
                return
            if get_ident() != seen.thread:
                if seen.inside_backward:  # recomputed in a thread of the backward pass
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
                    if os.getpid() == seen.pid or (trains and self._adopt(module)):
                        if trains:
                            _outermost(torch, seen, module, args)
                        seen.entered = FORWARD if trains else EVALUATION
                        seen.phases.enter(seen.entered)
                elif is_grad_enabled():
                    _inside(torch, seen, module, args)
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
                _tell_memory(reports, sys.exc_info()[1], "a forward pass")
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
        except (
            TypeError
        ):  # an older torch: what raises is counted as still open until the next step
            modules.register_module_forward_hook(after)

    def _wrap_backward(self) -> None:
        torch, seen, reports, compiling = self._torch, self.seen, self._reports, self._compiling
        run, run_grad = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(run)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if compiling() or seen.off:
                return run(*args, **kwargs)
            if not seen.inside_backward:
                if threading.get_ident() != seen.thread:  # the other one only tried the model
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
                    self._look_at_weights()

        @functools.wraps(run_grad)
        def grad(*args: Any, **kwargs: Any) -> Any:
            """A part of a backward pass, as for a penalty, or the program's own pass: only its time
            counts."""
            if compiling() or seen.off or threading.get_ident() != seen.thread:
                return run_grad(*args, **kwargs)
            with _backward_pass(seen, reports):
                return run_grad(*args, **kwargs)

        torch.autograd.backward, torch.autograd.grad = backward, grad


def _outermost(torch: Any, seen: Seen, module: Any, args: Any) -> None:
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


def _inside(torch: Any, seen: Seen, module: Any, args: Any) -> None:
    if seen.exploring:
        seen.calls += 1
        if not seen.autocast and seen.calls < 64:
            seen.autocast = model_facts.autocast(torch)
    if seen.call is not None:
        seen.call.look(torch, module, args)


def _changes_itself(torch: Any, seen: Seen) -> bool:
    """Whether weights have changed between backward passes, though no optimizer has stepped. Looked
    at in programs of one process alone, as sharded weights come and go."""
    if model_facts.is_distributed(torch) or _is_capturing(torch):
        return False
    if seen.sample is None:
        modules = [module for root in seen.roots.values() if (module := root.ref()) is not None]
        parameters = (p for module in modules for p in module.parameters())
        trained = [p for p in parameters if p.grad is not None and p.numel()]
        if trained:
            # of an embedding most rows have no gradient
            parameter = min(trained, key=lambda p: p.numel())
            seen.sample = parameter, parameter.detach().flatten()[:SAMPLE].clone()
        return False
    parameter, before = seen.sample
    now = parameter.detach().flatten()[:SAMPLE].clone()
    seen.sample = parameter, now
    return not torch.equal(now, before)


def _tell_memory(reports: Channel, error: BaseException | None, where: str) -> None:
    """An exception that left what the program called, if memory ran out. It is not kept, because it
    holds the tensors of its frames."""
    text = str(error)
    if any(words in text.lower() for words in LACKS_MEMORY):
        reports.send("out_of_memory", error=text[:300], where=where)


def _look_at_allocations(torch: Any, seen: Seen, reports: Channel) -> None:
    """Whether memory ran out in this step outside of modules and backward passes, as in a loss.
    Libraries that try algorithms (cuDNN) raise such exceptions, too, and leave nothing undone."""
    is_left = seen.stepping or any(r.made.calls > r.used.calls for r in seen.roots.values())
    if not (is_left or seen.failed_allocations is None) or not uses_cuda(torch):
        return
    before = seen.failed_allocations
    seen.failed_allocations = int(torch.cuda.memory_stats().get("num_ooms", 0))
    if before is not None and seen.failed_allocations > before:
        error = "torch's allocator counted a failed allocation, and the step did not finish"
        reports.send("out_of_memory", error=error, where="an optimizer step")


def _is_capturing(torch: Any) -> bool:
    """Whether a CUDA graph is recorded, in which nothing may wait for the device."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def _backward_pass(seen: Seen, reports: Channel) -> Iterator[None]:
    """The body counts as a backward pass."""
    seen.inside_backward += 1
    seen.phases.enter(BACKWARD)
    seen.profile.pass_begins()
    try:
        yield
    except Exception as error:
        if seen.inside_backward == 1:
            _tell_memory(reports, error, "a backward pass")
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
    def drawn(self: Any) -> Any:
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
                first, _ = sizing(torch, batch)
                seen.loaded += int(first.shape[0]) if first is not None else 0
                seen.workers = int(getattr(self, "_num_workers", 0))
            except Exception:
                seen.off = True
        return batch

    iterator.__next__ = drawn


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
    """An event of the device that holds the optimizer's parameters, at the end of what was asked of
    it so far; None for a CPU."""
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
    """The most that torch's allocator gave out and held on this process's device so far."""
    if not uses_cuda(torch):
        return {}
    return {
        "peak": int(torch.cuda.max_memory_allocated()),
        "reserved": int(torch.cuda.max_memory_reserved()),
    }
