"""What every sampler promises, whatever it does inside: add a line to the table and the promises are checked."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from tests.helpers.cases import over


class SamplerCase(NamedTuple):
    name: str
    make: Callable[[int, int], sk.samplers.AbstractSampler]
    """The sampler for n particles in d dimensions."""
    equivariant: bool = True
    """Whether the particles are treated alike: not where the noise, or the choice of anchors, goes by their order."""


def bent(x):
    """Neither Gaussian nor symmetric, for any dimension."""
    return -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2) - 0.1 * jnp.sum(x**4 - x**3)


def surrogate(x):
    return -0.3 * jnp.sum(x**2)


def matrix_kernel(x, y):
    return jnp.exp(-0.3 * jnp.sum((x - y) ** 2)) * jnp.eye(x.shape[0], dtype=x.dtype) + 0.1 * x[:, None] * y[None, :]


SAMPLERS = [
    SamplerCase("svgd, rbf", lambda n, d: sk.svgd()),
    SamplerCase("svgd, imq", lambda n, d: sk.svgd(sk.IMQ())),
    SamplerCase("svgd, linear", lambda n, d: sk.svgd(sk.kernels.Linear())),
    SamplerCase("svgd, graphical", lambda n, d: sk.svgd(sk.Graphical.coordinatewise(sk.RBF(), d))),
    SamplerCase("svgd, function", lambda n, d: sk.svgd(matrix_kernel)),
    SamplerCase("average", lambda n, d: sk.matrix_svgd("average", sk.Hessian())),
    SamplerCase(
        "average, diagonal, decayed, refreshed",
        lambda n, d: sk.matrix_svgd("average", sk.Hessian(diagonal=True), decay=0.9, refresh_every=3),
    ),
    SamplerCase("untuned", lambda n, d: sk.samplers.AutoSVGD(sk.linalg.DenseMetric.of(2.0 * jnp.eye(d)), 100)),
    SamplerCase("mixture", lambda n, d: sk.matrix_svgd("mixture", sk.Hessian())),
    SamplerCase(
        "mixture, anchors by number, refreshed",
        lambda n, d: sk.matrix_svgd("mixture", sk.Hessian(), anchors=min(2, n), refresh_every=3),
        equivariant=False,
    ),
    SamplerCase(
        "mixture, anchors given, diagonal, decayed",
        lambda n, d: sk.matrix_svgd(
            "mixture", sk.Hessian(diagonal=True), anchors=np.linspace(-1.0, 1.0, 3)[:, None] * np.ones(d), decay=0.9
        ),
    ),
    SamplerCase("svn", lambda n, d: sk.svn(sk.Hessian())),
    SamplerCase("ensemble", lambda n, d: sk.ensemble()),
    SamplerCase("gradient-free", lambda n, d: sk.gradient_free_svgd(surrogate)),
    SamplerCase("sgld", lambda n, d: sk.sgld(0.01), equivariant=False),
    SamplerCase("psgld", lambda n, d: sk.psgld(0.01), equivariant=False),
    SamplerCase("psgld, corrected", lambda n, d: sk.psgld(0.01, correction=True), equivariant=False),
]

sampler_cases = over(SAMPLERS)
some_samplers = over(
    SAMPLERS, {"svgd, rbf", "average, diagonal, decayed, refreshed", "mixture", "svn", "sgld", "psgld"}
)

N, D = 6, 2


def target_in(d: int, dtype=jnp.float64) -> sk.LogDensity:
    return sk.LogDensity(bent).bind(jnp.zeros(d, dtype))


def walk(key, case: SamplerCase, points):
    """Some steps, compiled once for all tests of a sampler; four, so that a metric kept for three is renewed."""
    return _program(case, points.shape[-2:], points.ndim > 2)(key, points)


@cache
def _program(case: SamplerCase, shape: tuple[int, int], mapped: bool):
    sampler, target = case.make(*shape), target_in(shape[1])

    def walk(key, points):
        steps = jr.split(key, 4)
        return jax.lax.scan(lambda state, key: sampler.step(key, state, target), sampler.init(target, points), steps)

    quick = {"xla_backend_optimization_level": 0}  # these programs run once or twice: compiling is all their time
    return jax.jit(jax.vmap(walk) if mapped else walk, compiler_options=quick)


def assert_same_tree(actual, expected, rtol: float = 0.0):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


@pytest.mark.every(9)
@sampler_cases
def test_steps_depend_on_their_arguments_alone(case: SamplerCase, key):
    points = jr.normal(key, (N, D))
    first = walk(key, case, points)
    walk(jr.split(key)[0], case, points + 1)
    assert_same_tree(walk(key, case, points), first)
    assert not np.array_equal(first[0].points, points)


@pytest.mark.every(2)
@sampler_cases
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_state_keeps_its_structure_shapes_and_types(case: SamplerCase, dtype, key):
    sampler, target = case.make(N, D), target_in(D, dtype)
    before = jax.eval_shape(lambda points: sampler.init(target, points), jax.ShapeDtypeStruct((N, D), dtype))
    after, info = jax.eval_shape(lambda state: sampler.step(key, state, target), before)
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    numbers = [leaf for leaf in jax.tree.leaves((after, info)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert {leaf.dtype for leaf in numbers} == {jnp.dtype(dtype)}


@pytest.mark.every(6)
@some_samplers
def test_mapped_steps_are_the_steps_of_every_seed(case: SamplerCase, key):
    points = jr.normal(key, (3, N, D))
    keys = jr.split(key, 3)
    mapped = walk(keys, case, points)
    for lane in range(3):
        alone = walk(keys[lane], case, points[lane])
        assert_same_tree(jax.tree.map(lambda leaf, lane=lane: leaf[lane], mapped), alone, rtol=1e-9)


@pytest.mark.every(2)
@pytest.mark.parametrize("case", [case for case in SAMPLERS if case.equivariant], ids=lambda case: case.name)
def test_permuting_the_particles_permutes_the_answer(case: SamplerCase, key):
    points = jr.normal(key, (N, D))
    order = jr.permutation(key, N)
    expected = walk(key, case, points)[0].points[order]
    np.testing.assert_allclose(walk(key, case, points[order])[0].points, expected, rtol=1e-9, atol=1e-9)


DEGENERATE = {
    "two equal": lambda points: points.at[1].set(points[0]),
    "all equal": lambda points: jnp.broadcast_to(points[:1], points.shape),
    "a constant coordinate": lambda points: points.at[:, 1].set(0.3),
    "a zero coordinate": lambda points: points.at[:, 1].set(0.0),
    "far away": lambda points: points + 30.0,
}


@some_samplers
@pytest.mark.parametrize("degenerate", DEGENERATE)
def test_degenerate_particles_move_by_finite_numbers(case: SamplerCase, degenerate: str, key):
    assert_finite(walk(key, case, DEGENERATE[degenerate](jr.normal(key, (N, D)))))


@pytest.mark.every(4)
@some_samplers
@pytest.mark.parametrize(("n", "d"), [(1, 2), (N, 1)], ids=["one particle", "one dimension"])
def test_smallest_problems_move_by_finite_numbers(case: SamplerCase, n: int, d: int, key):
    assert_finite(walk(key, case, jr.normal(key, (n, d))))


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(0.1), optax.sgd(0.1, momentum=0.9), optax.rmsprop(0.1), optax.sgd(optax.cosine_decay_schedule(0.1, 9))],
    ids=["adam", "momentum", "rmsprop", "schedule"],
)
def test_step_rules_of_optax_work_under_strict_promotion_of_types(optimizer, key):
    sampler, target, points = sk.svgd(optimizer=optimizer), target_in(D, jnp.float32), jnp.ones((N, D), jnp.float32)
    state = sampler.init(target, points)
    after, _ = jax.eval_shape(lambda state: sampler.step(key, state, target), state)
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (sk.svgd(sk.Graphical.coordinatewise(sk.RBF(), 3)), "`blocks` must cover the 2 coordinates"),
        (sk.gradient_free_svgd(surrogate, sk.Graphical.coordinatewise(sk.RBF(), 3)), "`blocks` must cover the 2"),
        (sk.matrix_svgd("average", sk.Hessian(), sk.Graphical.coordinatewise(sk.RBF(), 3)), "`blocks` must cover"),
        (sk.matrix_svgd("mixture", sk.Hessian(), anchors=N + 1), "`anchors` must be at most the number of particles"),
        (sk.samplers.AutoSVGD(sk.linalg.DenseMetric.of(jnp.eye(3)), 9), "`metric` must have the particles' 2 coord"),
    ],
    ids=["kernel", "gradient-free", "average", "anchors", "metric"],
)
def test_a_sampler_that_does_not_fit_the_particles_is_refused_by_init_and_by_fit(sampler, message, key):
    with pytest.raises(ValueError, match=f"^{message}"):
        sampler.init(target_in(D), jnp.ones((N, D)))
    with pytest.raises(ValueError, match=f"^{message}"):
        sk.fit(key, bent, sampler, jr.normal(key, (N, D)), num_steps=1)


def test_particles_at_rest_are_told_by_the_samplers_that_measure_it(key):
    target = sk.LogDensity(lambda x: -0.5 * jnp.sum(x**2)).bind(jnp.zeros(D))
    sampler = sk.samplers.AutoSVGD(sk.linalg.DenseMetric.of(jnp.eye(D)), 400)

    def move(state, step):
        state, info = sampler.step(step, state, target)
        return state, info.at_rest

    at_rest = jax.lax.scan(move, sampler.init(target, 3 + jr.normal(key, (N, D))), jr.split(key, 400))[1]
    assert not at_rest[0]
    assert at_rest[-1]
    assert sk.svgd().step(key, sk.svgd().init(target, jnp.ones((N, D))), target)[1].at_rest is None


def assert_finite(outcome):
    state, info = outcome
    for leaf in jax.tree.leaves((state, info.velocity_norm, info.step_size)):
        assert np.all(np.isfinite(leaf))
