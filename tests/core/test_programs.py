"""Compiled programs are kept for functions that may come again, in a bounded number, and can be let go."""

import gc
import os
import threading
import weakref

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core import programs
from steinkern.core.programs import compiled
from tests.helpers.processes import output_of

STARTS = np.random.default_rng(0).normal(size=(4, 2))


def test_programs_of_functions_long_unused_are_let_go():
    @compiled
    def applied(function, x):
        return function(x)

    def call_of_a_new_function():
        function = jnp.vectorize(lambda x: 2 * x)
        applied(function, jnp.ones(2))
        return weakref.ref(function)

    called = [call_of_a_new_function() for _ in range(programs.MAX_PROGRAMS + 1)]
    gc.collect()
    assert [function() is None for function in called] == [True] + programs.MAX_PROGRAMS * [False]


def test_all_programs_are_let_go_on_request():
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    sk.fit(jr.key(0), log_density, sk.svgd(), STARTS, num_steps=3)
    kept = weakref.ref(log_density)
    del log_density  # nobody else holds it
    gc.collect()
    assert kept() is not None
    sk.release_programs()
    gc.collect()
    assert kept() is None


def test_a_function_used_again_is_not_compiled_again_and_others_do_not_mix_with_it():
    traced = []

    @compiled
    def scaled(x, factor, name="x", *, more=None):
        traced.append((factor, name))
        return {"sum": x * factor, "name": name, "more": more, "kind": type(factor)}

    for _ in range(2):
        assert scaled(jnp.ones(2), 3)["name"] == "x"
        np.testing.assert_array_equal(scaled(jnp.ones(2), 3)["sum"], 3 * np.ones(2))
    assert traced == [(3, "x")]
    assert scaled(np.ones(2), 3, name="y")["name"] == "y"
    assert scaled(np.ones(2), 1, more=(1, "z"))["more"] == (1, "z")
    assert scaled(np.ones(2), 1.0)["kind"] is float
    assert len(traced) == 4  # 1 and 1.0 are two


def test_options_of_a_gpu_hold_for_the_outermost_program_alone(monkeypatch):
    """JAX refuses options of a program within another one."""
    monkeypatch.setattr(programs, "gpu_options", lambda: {"xla_gpu_enable_triton_gemm": False})

    @compiled
    def doubled(x, name="x"):
        return {"sum": 2 * x, "name": name}

    @compiled
    def again(x):
        return doubled(x, name="y")["sum"] + 1

    np.testing.assert_array_equal(again(jnp.ones(2)), 3 * np.ones(2))
    np.testing.assert_array_equal(jax.jit(again)(jnp.ones(2)), 3 * np.ones(2))
    particles = jr.normal(jr.key(0), (5, 2))
    result = sk.fit(jr.key(1), lambda x: -0.5 * jnp.sum(x**2), sk.svgd(), particles, num_steps=3, progress=False)
    assert np.isfinite(result.points).all()


@pytest.fixture
def names():
    """The names of programs that the test compiles."""
    names: list[str] = []

    def listen(event, seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="programs are compiled in threads on a CPU alone")
def test_a_program_compiled_ahead_is_traced_and_compiled_once(names):
    traced = []

    @compiled
    def doubled(x, name):
        traced.append(name)
        return {"twice": 2 * x, "name": name}

    x = jnp.arange(3.0)
    shapes = doubled.compile_ahead(jax.ShapeDtypeStruct(x.shape, x.dtype), "n")
    assert (shapes["twice"].shape, shapes["name"]) == ((3,), "n")
    assert doubled.compile_ahead(x, "n") is None  # it has been
    value = doubled(x, "n")
    np.testing.assert_array_equal(value["twice"], [0, 2, 4])
    doubled(x, "n")
    assert traced == ["n"]
    assert sum("doubled" in name for name in names) == 1


def test_arrays_of_a_device_of_their_own_are_not_compiled_for_ahead():
    doubled = compiled(lambda x: 2 * x)
    assert doubled.compile_ahead(jax.device_put(np.ones(2), jax.devices()[0])) is None
    np.testing.assert_array_equal(doubled(jnp.ones(2)), [2, 2])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="programs are compiled in threads on a CPU alone")
def test_an_error_of_a_compilation_ahead_is_raised_by_the_call(monkeypatch):
    monkeypatch.setattr(programs, "gpu_options", lambda: {"xla_of_no_version": True})
    doubled = compiled(lambda x: 2 * x)
    doubled.compile_ahead(jnp.ones(2))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_of_no_version"):
        doubled(jnp.ones(2))


def test_an_error_of_the_trace_of_the_steps_is_raised():
    class Unsound(type(sk.svgd())):
        def step(self, key, state, target, batch=None):
            raise RuntimeError("this step cannot be traced")

    with pytest.raises(RuntimeError, match="this step cannot be traced"):
        sk.fit(jr.key(0), lambda x: -jnp.sum(x**2), Unsound(*sk.svgd().__dict__.values()), STARTS, num_steps=3)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="programs are compiled in threads on a CPU alone")
def test_a_weak_type_stays_weak_so_that_the_call_finds_the_program(names):
    first, second = compiled(lambda x: x * jnp.asarray(1.0)), compiled(lambda x: x + 1)
    shape = first.compile_ahead(jnp.asarray(1.0))
    assert shape.weak_type == first(jnp.asarray(1.0)).aval.weak_type is True
    names.clear()
    second.compile_ahead(shape)
    second(first(jnp.asarray(1.0)))
    assert sum("lambda" in name for name in names) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="programs are compiled in threads on a CPU alone")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have():
    """In a process of its own, whose compilation lasts as long as its parent lets it."""
    code = """
import os, signal, threading, jax.numpy as jnp
from steinkern.core.programs import _split, compiled
doubled = compiled(lambda x: 2 * x)
doubled.compile_ahead(jnp.ones(2))
program = doubled.programs(_split((jnp.ones(2),), {})[0])
ended = threading.Event()
program.compilation = threading.Thread(target=ended.wait)
program.compilation.start()
child = os.fork()
if child == 0:
    signal.alarm(60)  # it would wait for ever
    program.compilation.join()  # as its call does
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ended.set()
"""
    assert output_of("-W", "ignore", "-c", code) == "7\n"


def test_many_threads_may_fit_one_target():
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    found, sampler = [], sk.svgd()

    def run():
        found.append(sk.fit(jr.key(0), log_density, sampler, STARTS, num_steps=3, progress=False).points)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for points in found:
        np.testing.assert_allclose(points, found[0], rtol=1e-6)
