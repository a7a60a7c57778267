"""Arrays that a log density closes over: `sample` meets copies of them, so that JAX is left as it was."""

import gc
import threading
import types

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference.automatic.closures import _kept, on_copied_arrays
from steinkern.inference.automatic.precision import bind, double_precision
from tests.closures import SIZE, cases

START = np.array([0.5, -1.0, 2.0])


@pytest.fixture
def single():
    """JAX as most programs use it: single precision, standard promotion."""
    before = {name: getattr(jax.config, f"jax_{name}") for name in ("enable_x64", "numpy_dtype_promotion")}
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


def seen_by_another_thread(*arrays):
    """What the arrays are to JAX in a thread that did not ask for double precision."""
    found = []
    thread = threading.Thread(target=lambda: found.extend(jnp.asarray(array).dtype.name for array in arrays))
    thread.start()
    thread.join()
    return found


FEW = (
    "globals, compiled",
    "closure",
    "namespace",
    "deque",
    "partial, by name",
    "class variables",
    "compiled inside",
    "custom_vjp",
    "module",
)


@pytest.mark.parametrize("met_before", [False, True], ids=["not met before", "met in single precision"])
@pytest.mark.parametrize("names", [FEW, pytest.param(None, marks=pytest.mark.thorough)], ids=["few", "all"])
def test_arrays_that_a_log_density_reaches_are_met_in_full_precision_and_left_alone(single, names, met_before):
    made = cases()
    for name in made if names is None else names:
        function, index, data = made[name]
        own = jax.jit(lambda x, function=function: function(x))
        if met_before:
            jax.block_until_ready(own(jnp.asarray(START)))
        with double_precision(sk.LogDensity(function), START, None) as (wide, target):
            assert wide, name
            bound, vector, batch = bind(target, START, None, True)
            program = jax.make_jaxpr(jax.value_and_grad(bound.log_density))(vector, batch)
            value, score = jax.value_and_grad(bound.log_density)(vector, batch)
            during = seen_by_another_thread(index, data)
        off = START[index] - data
        np.testing.assert_allclose(value, -0.5 * np.sum(off**2), rtol=1e-14, err_msg=name)
        np.testing.assert_allclose(np.asarray(score)[index], -off, rtol=1e-13, err_msg=name)
        assert during == ["int32", "float32"], name
        # After it, with the program still there, as JAX's own caches may hold it:
        assert jnp.asarray(index).dtype == jnp.int32, name
        assert jnp.arange(9.0)[index].shape == (SIZE,)
        assert jax.jit(jnp.take)(jnp.arange(9.0), index).dtype == jnp.float32
        if met_before:
            assert own._cache_size() == 1, name
        assert own(jnp.asarray(START)).dtype == jnp.float32, name
        del program
    assert not jax.config.jax_enable_x64


def test_the_same_function_gives_the_same_copy_until_its_arrays_change_or_it_is_gone():
    index, data = np.arange(3), np.ones(3)

    def function(x):
        return -0.5 * jnp.sum((x[index] - data) ** 2)

    gc.collect()
    before = set(_kept._entries)
    copy = on_copied_arrays(function)
    assert copy is not function
    assert on_copied_arrays(function) is copy
    assert on_copied_arrays(sk.LogDensity(function)).function is copy
    data[0] = 5.0  # in place
    changed = on_copied_arrays(function)
    assert changed is not copy
    assert float(changed(jnp.zeros(3))) == -0.5 * 27
    assert float(copy(jnp.zeros(3))) == -0.5 * 3
    del function, copy, changed
    gc.collect()
    assert set(_kept._entries) <= before


@pytest.mark.parametrize("name", ["callable object", "object with slots", "method", "class variables", "property"])
def test_objects_and_their_methods_give_the_same_copy_again(name):
    function, *_ = cases()[name]
    one, other = on_copied_arrays(function), on_copied_arrays(function)
    assert one is not function
    assert one == other
    assert hash(one) == hash(other)


def test_a_number_beside_an_array_is_the_one_of_now():
    held = types.SimpleNamespace(data=np.ones(3), scale=1.0)

    def function(x):
        return -held.scale * jnp.sum((x - held.data) ** 2)

    assert float(on_copied_arrays(function)(jnp.zeros(3))) == -3
    held.scale = 5.0
    assert float(on_copied_arrays(function)(jnp.zeros(3))) == -15


def test_what_reaches_no_such_array_is_not_copied():
    small, calls = np.arange(3, dtype=np.int32), []

    def function(x):
        calls.append(x)
        return jnp.sum(x[small])

    assert on_copied_arrays(function) is function
    wide = np.arange(3)

    def other(x):
        calls.append(x)
        return jnp.sum(x[wide])

    on_copied_arrays(other)(jnp.zeros(3))
    assert len(calls) == 1  # what leads to no array is shared


def test_an_error_within_leaves_the_switches_as_they_were(single):
    def broken(x):
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        sk.sample(jr.key(0), broken, np.zeros(2))
    assert not jax.config.jax_enable_x64

    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sk.sample(jr.key(0), interrupted, np.zeros(2))
    assert jnp.zeros(()).dtype == jnp.float32


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["closure", "globals, compiled", "callable object"])
def test_sampling_leaves_programs_arrays_and_other_threads_as_they_were(single, caplog, name):
    function, index, data = cases()[name]
    own = jax.jit(lambda x: function(x))
    value = own(jnp.asarray(START))
    wrong, ended = [], threading.Event()

    def loop():
        while not ended.is_set():
            found = jnp.asarray(index).dtype.name, jnp.asarray(data).dtype.name, jnp.arange(9.0)[index].dtype.name
            if found != ("int32", "float32", "float32"):
                wrong.append(found)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        first = sk.sample(jr.key(0), function, START, 20)
        with jax.log_compiles(), caplog.at_level("WARNING"):
            sk.sample(jr.key(1), function, START, 20)
    finally:
        ended.set()
        thread.join()
    assert not wrong

    def compiled():
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]

    assert not compiled()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        jax.jit(lambda x: x + 1)(START)
    assert compiled()  # that is how JAX words it
    np.testing.assert_allclose(first.points.mean(axis=0)[index], data, atol=1e-6)
    assert own._cache_size() == 1
    assert own(jnp.asarray(START)) == value
