"""Compiled functions with a bounded cache of programs."""

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax

from .types import is_concrete

P = ParamSpec("P")
R = TypeVar("R")

KEPT = 16
"""The number of programs kept for each compiled function, one for every set of static arguments."""

_stores: "weakref.WeakSet[_Store]" = weakref.WeakSet()


class _Static(eqx.Module):
    """Outputs other than arrays, which leave a compiled function as static structure."""

    value: Any = eqx.field(static=True)


_compiling: "set[threading.Event]" = set()


@atexit.register
def _wait_for_threads() -> None:
    """A process that ends while XLA compiles crashes; Ctrl-C does not end this wait."""
    for done in list(_compiling):
        while not done.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                done.wait()


def _forget_threads() -> None:
    """A forked process has none of the threads, so it must not wait for them; its calls compile."""
    for done in list(_compiling):
        done.set()
    _compiling.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_threads)


class Begun(Generic[R]):
    """A first call that has been traced, and can be compiled ahead of the call itself."""

    def __init__(self, program: "_Program", lowered: Any, value: R):
        self._program = program
        self._lowered = lowered
        self.value = value
        """The value of the call, with shapes for arrays."""

    def compile(self) -> None:
        """Compile in a thread, for which the call waits; without one where no thread can be started."""
        done = threading.Event()

        def compile_() -> None:
            try:
                with contextlib.suppress(Exception):  # the call meets the same error, and raises it
                    self._lowered.compile()
            finally:
                done.set()
                _compiling.discard(done)

        # A daemon, for which `_wait_for_threads` waits in place of the interpreter.
        thread = threading.Thread(target=compile_, name="steinkern: compilation", daemon=True)
        _compiling.add(done)
        try:
            thread.start()
        except RuntimeError:  # at the end of a process, or at a limit of threads: the call compiles
            _compiling.discard(done)
            return
        self._program.compiled = done


class _Program:
    """A function compiled for one set of static arguments."""

    def __init__(self, run: Any):
        self.run = run
        self.compiled: threading.Event | None = None
        """Set by the thread that compiles it."""

    def __call__(self, dynamic: list[Any]) -> Any:
        done = self.compiled  # another thread may set it to `None`
        if done is not None:
            done.wait()
            self.compiled = None
        return self.run(dynamic)


class _Store:
    """A least-recently-used cache of one function's programs, keyed by their static arguments."""

    def __init__(self, function: Callable[..., Any], quickly: bool):
        self.function = function
        self.quickly = quickly
        self.programs: OrderedDict[Any, _Program] = OrderedDict()
        self.lock = threading.Lock()
        _stores.add(self)

    def get(self, static: Any) -> _Program:
        with self.lock:
            program = self.programs.get(static)
            if program is None:
                program = self.programs[static] = _Program(_jitted(self.function, static, self.quickly))
            self.programs.move_to_end(static)
            while len(self.programs) > KEPT:
                self.programs.popitem(last=False)
        return program

    def clear(self) -> None:
        with self.lock:
            self.programs.clear()


class Compiled(Generic[P, R]):
    """A function whose calls are compiled; see `compiled`."""

    def __init__(self, function: Callable[P, R], quickly: bool = False):
        self._function = function
        self._store = _Store(function, quickly)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's value; outputs other than arrays are returned as they are."""
        static, dynamic = _split(args, kwargs)
        program = self._store.get(static)
        if (self._store.quickly or gpu_options()) and not all(is_concrete(leaf) for leaf in dynamic):
            return self._function(*args, **kwargs)  # part of another program, whose options hold
        try:
            arrays, rest = program(dynamic)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error) or not _forget_options():
                raise
            return self(*args, **kwargs)
        return eqx.combine(arrays, rest.value)

    def begin(self, *args: Any, **kwargs: Any) -> Begun[R] | None:
        """Trace a first call, so that it can be compiled in a thread beside other work; on a CPU alone.

        Args:
            *args: those of the call; arrays may be given by their `jax.ShapeDtypeStruct`.
            **kwargs: likewise.

        Returns:
            What has begun; `None` for a function that has been called with these static arguments, and for arrays that
            belong to a device, which their shapes do not tell.
        """
        static, dynamic = _split(args, kwargs)
        placed = any(getattr(leaf, "committed", False) for leaf in dynamic)
        if placed or static in self._store.programs or not _compiles_in_threads():
            return None
        program = self._store.get(static)
        traced = program.run.trace(dynamic)
        arrays, rest = traced.out_info  # with weak types, which those of `lower` lack
        return Begun(program, traced.lower(), eqx.combine(arrays, rest.value))

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The program of a call before it is compiled, as `jax.jit(...).lower` gives it."""
        static, dynamic = _split(args, kwargs)
        return self._store.get(static).run.lower(dynamic)

    def check(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Trace a call, or find that it has been: what the function raises for these arguments is raised."""
        static, dynamic = _split(args, kwargs)
        self._store.get(static).run.eval_shape(dynamic)


def _split(args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """What a program is made for, and its arguments: the arrays, or their shapes."""
    leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
    dynamic = [leaf if _is_dynamic(leaf) else None for leaf in leaves]
    static = tuple(None if _is_dynamic(leaf) else leaf for leaf in leaves)
    return (static, tuple(map(type, static)), structure), dynamic


def _is_dynamic(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _compiles_in_threads() -> bool:
    config: Any = jax.config
    return jax.default_backend() == "cpu" and jax.process_count() == 1 and not config.jax_disable_jit


def compiled(function: Callable[P, R]) -> Compiled[P, R]:
    """Compile a function as `eqx.filter_jit` does (arrays are traced, all else is static), with a bounded cache.

    `jax.jit` holds its static arguments, and with them its programs, until the process ends: a log density written
    anew for each fit, such as a lambda in a loop, then costs megabytes a fit. Here each set of static arguments has a
    `jax.jit` of its own. The `KEPT` most recently used ones stay; JAX frees the programs of the others.
    """
    return Compiled(function)


def compiled_quickly(function: Callable[P, R]) -> Compiled[P, R]:
    """`compiled` for a function that runs once or twice a call, in milliseconds: compiled sooner, into slower code.

    On a CPU compilation takes a fifth to a half of the time, and code runs a third as fast.
    """
    return Compiled(function, quickly=True)


_options = [
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
    {},
]
"""What asks XLA for quick compilation: the first set that the present version knows."""
if jax.__version_info__ >= (0, 11):  # the old emitters are gone
    del _options[0]


def _forget_options() -> bool:
    """Go on to the next set of options; False where there is none."""
    if len(_options) == 1:
        return False
    del _options[0]
    for store in list(_stores):
        if store.quickly:
            store.clear()
    return True


def _jitted(function: Callable[..., Any], key: Any, quickly: bool) -> Any:
    static, _, structure = key

    def run(dynamic: list[Any]) -> tuple[Any, _Static]:
        leaves = [fixed if leaf is None else leaf for leaf, fixed in zip(dynamic, static, strict=True)]
        args, kwargs = jax.tree_util.tree_unflatten(structure, leaves)
        arrays, rest = eqx.partition(function(*args, **kwargs), eqx.is_array)
        return arrays, _Static(rest)

    run.__name__ = run.__qualname__ = function.__name__
    options = _options[0] if quickly and jax.default_backend() == "cpu" else gpu_options()
    return jax.jit(run, compiler_options=options or None)


def gpu_options() -> dict[str, Any]:
    """Options for programs on a GPU: products of matrices by cuBLAS alone.

    XLA otherwise compiles dozens of Triton kernels for each product and times them: on an H200 the first call of a KFAC
    mixture on a network 784-400-400-10 takes 83 s so, and 11 s without.
    """
    return {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else {}


def release_programs() -> None:
    """Free all programs that this library has compiled, and the functions and constants that they hold.

    A process that fits many different log densities keeps the programs of the last 16, some megabytes each. Call this
    between fits to free them; the next fit compiles anew, and the process uses the memory again. Programs of the
    caller's own `jax.jit` functions stay, which `jax.clear_caches()` would drop too.
    """
    for store in list(_stores):
        store.clear()
