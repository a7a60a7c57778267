"""Compiled programs are kept for functions that may come again, in a bounded number, and can be let go."""

import gc
import weakref

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core import programs
from steinkern.core.programs import compiled

STARTS = np.random.default_rng(0).normal(size=(4, 2))


def fit_of_a_new_function() -> weakref.ref:
    """A fit whose log density nobody holds afterwards."""

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    sk.fit(jr.key(0), log_density, sk.svgd(), STARTS, num_steps=3)
    return weakref.ref(log_density)


def test_programs_of_functions_long_unused_are_let_go_and_all_of_them_on_request(monkeypatch):
    monkeypatch.setattr(programs, "KEPT", 1)
    first, second = fit_of_a_new_function(), fit_of_a_new_function()
    gc.collect()
    assert (first() is None, second() is None) == (True, False)
    sk.release_programs()
    gc.collect()
    assert second() is None


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
