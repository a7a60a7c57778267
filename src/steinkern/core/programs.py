"""Compiled functions with a bounded cache of programs."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax

from ._xla import gpu_options, has_small_matrices, one_blas_thread, quick_options
from .types import is_concrete

P = ParamSpec("P")
R = TypeVar("R")

MAX_PROGRAMS = 16
"""The most programs in the cache of one compiled function, each for one set of static arguments."""

_functions: "weakref.WeakSet[Compiled]" = weakref.WeakSet()


class _Static(eqx.Module):
    """Outputs other than arrays, which leave a compiled function as static structure."""

    value: Any = eqx.field(static=True)


class _Program:
    """A function compiled for one set of static arguments."""

    def __init__(self, function: Callable[..., Any], quickly: bool, key: Any):
        static, _, structure = key

        def run(dynamic: list[Any]) -> tuple[Any, _Static]:
            leaves = [fixed if leaf is None else leaf for leaf, fixed in zip(dynamic, static, strict=True)]
            args, kwargs = jax.tree_util.tree_unflatten(structure, leaves)
            arrays, rest = eqx.partition(function(*args, **kwargs), eqx.is_array)
            return arrays, _Static(rest)

        run.__name__ = run.__qualname__ = function.__name__
        options = quick_options() if quickly else gpu_options()
        self.jitted: Any = jax.jit(run, compiler_options=options or None)
        self.called = False
        self.compilation: threading.Thread | None = None
        """Compiles it ahead of the first call."""
        self.small_matrices: dict[Any, bool] = {}
        """Whether it calls LAPACK for small matrices alone, by the shapes of its arguments."""

    def __call__(self, dynamic: list[Any]) -> Any:
        self.called = True
        if self.compilation is not None:
            self.compilation.join()
        if jax.default_backend() != "cpu" or not all(map(is_concrete, dynamic)):
            return self.jitted(dynamic)
        shapes = tuple(getattr(leaf, "shape", None) for leaf in dynamic)
        if shapes not in self.small_matrices:
            self.small_matrices[shapes] = has_small_matrices(self.jitted.trace(dynamic).jaxpr)
        if not self.small_matrices[shapes]:
            return self.jitted(dynamic)
        with one_blas_thread():
            return jax.block_until_ready(self.jitted(dynamic))  # JAX returns before the program has run


class Compiled(Generic[P, R]):
    """A function whose calls are compiled; see `compiled`."""

    def __init__(self, function: Callable[P, R], quickly: bool = False):
        self._function = function
        self._quickly = quickly
        self.programs = functools.lru_cache(MAX_PROGRAMS)(functools.partial(_Program, function, quickly))
        functools.update_wrapper(self, function)
        _functions.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's value; outputs other than arrays are returned as they are."""
        static, dynamic = _split(args, kwargs)
        if (self._quickly or gpu_options()) and not all(map(is_concrete, dynamic)):
            return self._function(*args, **kwargs)  # JAX refuses options of a program within another
        arrays, rest = self.programs(static)(dynamic)
        return eqx.combine(arrays, rest.value)

    def compile_ahead(self, *args: Any, **kwargs: Any) -> R | None:
        """Trace a first call, and compile it in a thread; on a CPU only.

        Args:
            *args: those of the call; arrays may be given by their `jax.ShapeDtypeStruct`.
            **kwargs: likewise.

        Returns:
            The value of the call, with shapes for arrays; `None` if it is compiled already, and for arrays that are
            committed to a device, which their shapes do not tell.
        """
        static, dynamic = _split(args, kwargs)
        program = self.programs(static)
        config: Any = jax.config
        in_threads = jax.default_backend() == "cpu" and jax.process_count() == 1 and not config.jax_disable_jit
        committed = any(getattr(leaf, "committed", False) for leaf in dynamic)
        if program.called or program.compilation or committed or not in_threads:
            return None
        traced = program.jitted.trace(dynamic)
        lowered = traced.lower()

        def compile_() -> None:
            with contextlib.suppress(Exception):  # the call raises the same error
                lowered.compile()

        thread = threading.Thread(target=compile_, name="steinkern: compilation")
        thread.start()
        program.compilation = thread  # started, so that any other thread may join it
        arrays, rest = traced.out_info  # with weak types, which `lower` drops
        return eqx.combine(arrays, rest.value)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The program of a call before it is compiled, as `jax.jit(...).lower` gives it."""
        static, dynamic = _split(args, kwargs)
        return self.programs(static).jitted.lower(dynamic)


def _split(args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """The key of a program in the cache, and its arguments: the arrays, or their shapes."""
    leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
    dynamic, static = eqx.partition(leaves, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct))
    return (tuple(static), tuple(map(type, static)), structure), dynamic


def compiled(function: Callable[P, R]) -> Compiled[P, R]:
    """Compile a function as `eqx.filter_jit` does (arrays are traced, all else is static), with a bounded cache.

    `jax.jit` holds its static arguments, and with them its programs, until the process ends: a new log density in each
    fit, such as a lambda in a loop, then costs megabytes per fit. Here each set of static arguments has a separate
    `jax.jit`. The `MAX_PROGRAMS` most recently used ones stay; JAX frees the programs of the others.
    """
    return Compiled(function)


def compiled_quickly(function: Callable[P, R]) -> Compiled[P, R]:
    """`compiled` for a function that runs once or twice per call, in milliseconds: at XLA's optimisation level 0."""
    return Compiled(function, quickly=True)


def release_programs() -> None:
    """Free all programs that this library has compiled, and the functions and constants that they hold.

    A process that fits many different log densities keeps the programs of the last 16, some megabytes each. Call this
    between fits to free them; the next fit compiles again. Programs of the caller's `jax.jit` functions stay;
    `jax.clear_caches()` would drop them too.
    """
    for function in list(_functions):
        function.programs.cache_clear()
