import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg.cython_lapack  # noqa: F401  (loads the BLAS that jaxlib uses)
from threadpoolctl import threadpool_info, threadpool_limits

from steinkern.core import _xla
from steinkern.core.programs import compiled


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, "blas"):
        yield


def test_blas_has_one_thread_inside_the_block_and_the_callers_after_an_error():
    before = blas_threads()

    def work():
        with _xla.one_blas_thread(), _xla.one_blas_thread():
            assert blas_threads() == {1}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert blas_threads() == before


def test_the_last_of_two_threads_to_end_restores_the_callers_limit():
    before, inside, leave = blas_threads(), threading.Event(), threading.Event()

    def other():
        with _xla.one_blas_thread():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with _xla.one_blas_thread():
        thread.start()
        inside.wait()
    assert blas_threads() == {1}
    leave.set()
    thread.join()
    assert blas_threads() == before


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (jnp.linalg.cholesky, (100, 11, 11), True),
        (jnp.linalg.inv, (512, 512), True),
        (jnp.linalg.inv, (513, 513), False),
        (lambda x: jax.lax.scan(lambda c, _: (jnp.linalg.cholesky(c), None), x, None, length=2)[0], (3, 3), True),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.linalg.cholesky, jnp.negative, x), (3, 3), True),
        (jax.grad(lambda x: jnp.linalg.slogdet(x)[1]), (3, 3), True),
        (lambda x: (jnp.linalg.eigh(x), jnp.linalg.cholesky(jnp.eye(600))), (3, 3), False),
        (lambda x: x @ x, (3, 3), False),
    ],
)
def test_programs_that_factorise_small_matrices_alone_are_told_from_others(function, shape, expected):
    assert _xla.has_small_matrices(jax.make_jaxpr(function)(jnp.zeros(shape))) is expected


def until_large(x):
    return jax.lax.while_loop(lambda y: y < 10, lambda y: 2 * y, x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (until_large, True),
        (jax.jit(until_large), True),
        (lambda x: jax.lax.scan(lambda c, _: (until_large(c), None), x, None, length=2)[0], True),
        (lambda x: jax.lax.cond(x > 0, until_large, jnp.negative, x), True),
        (lambda x: jax.lax.switch(x.astype(int), [jnp.sin, jnp.cos, jnp.exp], x), True),
        (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), False),
        (lambda x: x * until_large(jnp.ones(())), False),  # the same loop at all points
        (lambda x: jax.lax.switch(jnp.argmax(jnp.arange(3)), [jnp.sin, jnp.cos, jnp.exp], x), False),
        (lambda x: jax.lax.fori_loop(0, 5, lambda _, y: 2 * y, x), False),
        (lambda x: jax.lax.scan(lambda c, _: (2 * c, None), x, None, length=2)[0], False),
    ],
)
def test_on_a_cpu_points_whose_loops_or_branches_differ_are_mapped_in_series(monkeypatch, function, expected):
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda device=device: device)
        found = _xla.is_faster_in_series(lambda x, _: function(x), jnp.ones(3), None)
        assert found is (expected and device == "cpu")


@pytest.mark.parametrize("name", ["cholesky", "det", "eigh", "eigvals", "inv", "pinv", "qr", "slogdet", "svd"])
def test_every_factorisation_of_jax_is_known(name):
    assert _xla.has_small_matrices(jax.make_jaxpr(getattr(jnp.linalg, name))(jnp.eye(4)))


def test_one_program_for_data_of_two_sizes_limits_blas_for_the_small_ones():
    seen = {}

    def note(x):
        seen[len(x)] = blas_threads()
        return x

    @compiled
    def factor(x):
        return jax.pure_callback(note, jax.ShapeDtypeStruct(x.shape, x.dtype), jnp.linalg.cholesky(x))

    for size in (600, 3, 3):
        np.testing.assert_allclose(factor(4 * jnp.eye(size)), 2 * np.eye(size))
        assert seen.pop(size) == ({1} if size == 3 else {2})


@pytest.mark.parametrize(("version", "warns"), [((0, 9, 2), False), ((0, 10, 0), True), ((0, 11, 1), False)])
def test_a_version_of_jax_that_hangs_is_told_at_import(version, warns):
    code = f"import jax; jax.__version_info__ = {version}; import steinkern"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("may hang in linear algebra" in done.stderr) == warns
