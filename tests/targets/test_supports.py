"""Every support against the autodiff Jacobian of its map, and spaces of pytrees put together from supports."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.targets.supports import Space


class SupportCase(NamedTuple):
    name: str
    support: sk.targets.AbstractSupport
    inside: list
    outside: list
    coordinates: Callable[[jax.Array], jax.Array] = lambda value: value  # a chart of the values, as large as u


SUPPORTS = [
    SupportCase("real", sk.targets.real, [-1e9, 0.0], [np.nan, np.inf]),
    SupportCase("positive", sk.positive, [1e-9, 5.0], [1.0, 0.0]),
    SupportCase("greater than", sk.greater_than(-1.5), [-1.4, 5.0], [2.0, -1.5]),
    SupportCase("less than", sk.less_than(2.0), [-5.0, 1.9], [1.0, 2.0]),
    SupportCase("interval", sk.interval(-1.0, 3.0), [-0.9, 2.9], [0.0, 3.0]),
    SupportCase("simplex", sk.simplex, [0.2, 0.7, 0.1], [0.2, 0.7, 0.2], lambda value: value[..., :-1]),
    SupportCase("ordered", sk.ordered, [-1.0, 0.0, 0.1], [0.0, 1.0, 1.0]),
]
support_cases = pytest.mark.parametrize("case", SUPPORTS, ids=lambda case: case.name)
leading_axes = pytest.mark.parametrize("shape", [(3,), (2, 1, 3)], ids=["vector", "leading axes"])


@pytest.mark.every(2)
@support_cases
@leading_axes
def test_unconstrain_undoes_constrain(case, shape, key):
    free = 2 * jr.normal(key, shape)
    value = eqx.filter_jit(case.support.constrain)(free)
    assert case.support.contains(np.asarray(value))
    np.testing.assert_allclose(eqx.filter_jit(case.support.unconstrain)(value), free, rtol=1e-10, atol=1e-12)


@pytest.mark.every(2)
@support_cases
def test_constrain_undoes_unconstrain(case):
    inside = jnp.array(case.inside)
    np.testing.assert_allclose(case.support.constrain(case.support.unconstrain(inside)), inside, rtol=1e-12)


@pytest.mark.every(2)
@support_cases
@leading_axes
def test_log_jacobian_is_the_log_determinant_of_the_autodiff_jacobian(case, shape, key):
    free = 2 * jr.normal(key, shape)

    def flat(u):
        return case.coordinates(case.support.constrain(u.reshape(shape))).reshape(-1)

    _, expected = np.linalg.slogdet(jax.jit(jax.jacfwd(flat))(free.reshape(-1)))
    np.testing.assert_allclose(eqx.filter_jit(case.support.log_jacobian)(free), expected, rtol=1e-10, atol=1e-12)


@eqx.filter_jit
def density(support, free):
    """A log density on a support in unconstrained coordinates, the constrained value, and the score."""

    def log_density(free):
        value = support.constrain(free)
        return support.log_jacobian(free) - jnp.sum(value), value

    (log_p, value), score = jax.value_and_grad(log_density, has_aux=True)(free)
    return log_p, value, score


@support_cases
@pytest.mark.parametrize("extreme", [-30.0, 30.0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_extreme_coordinates_stay_finite_and_in_their_precision(case, extreme, dtype):
    log_density, value, gradient = density(case.support, jnp.asarray(np.full(3, extreme, dtype)))
    for result in (log_density, value, gradient):
        assert np.all(np.isfinite(result))
        assert result.dtype == dtype
    if dtype == jnp.float64:
        assert case.support.contains(np.asarray(value))


@support_cases
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_supports_keep_the_precision_of_values(case, dtype):
    inside = jnp.asarray(np.array(case.inside, dtype))
    assert jax.eval_shape(case.support.unconstrain, inside).dtype == dtype


@support_cases
def test_supports_know_what_lies_inside(case):
    assert case.support.contains(np.array(case.inside))
    assert not case.support.contains(np.array(case.outside))
    assert case.support.contains(np.tile(case.inside, (4, 2, 1)))
    assert not case.support.contains(np.array([case.inside, case.outside[: len(case.inside)]]))


def test_the_centre_of_the_simplex_is_the_origin():
    np.testing.assert_allclose(sk.simplex.constrain(jnp.zeros(3)), np.full(4, 0.25), rtol=1e-14)


class Pair(NamedTuple):
    first: Any
    second: Any


class Module(eqx.Module):
    first: Any
    second: Any
    name: str = eqx.field(static=True, default="module")


A, B = jnp.array([0.5, 2.0]), jnp.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])


def space_case(name: str, particle, support, expected: list):
    """With the supports in the order of the leaves."""
    return pytest.param(particle, support, expected, id=name)


SPACES = [
    space_case("dictionary", {"a": A, "b": B}, {"b": sk.simplex, "a": sk.positive}, [sk.positive, sk.simplex]),
    space_case(
        "missing keys", {"a": A, "b": B, "c": A}, {"b": sk.simplex}, [sk.targets.real, sk.simplex, sk.targets.real]
    ),
    space_case("ordered dictionary", OrderedDict(b=B, a=A), {"a": sk.positive}, [sk.targets.real, sk.positive]),
    space_case("default dictionary", defaultdict(list, b=B, a=A), {"a": sk.positive}, [sk.positive, sk.targets.real]),
    space_case("list", [B, A, A], [sk.simplex, sk.positive, None], [sk.simplex, sk.positive, sk.targets.real]),
    space_case("namedtuple", Pair(A, B), Pair(sk.positive, sk.simplex), [sk.positive, sk.simplex]),
    space_case("module", Module(A, B), Module(sk.positive, sk.simplex), [sk.positive, sk.simplex]),
    space_case(
        "subtree", {"a": {"x": A, "y": [A]}, "b": B}, {"a": sk.positive}, [sk.positive, sk.positive, sk.targets.real]
    ),
    space_case(
        "nested", [{"a": A, "b": (A, B)}], [{"b": (sk.positive, None)}], [sk.targets.real, sk.positive, sk.targets.real]
    ),
    space_case("all of it", {"a": A, "b": [B, A]}, sk.positive, [sk.positive] * 3),
    space_case("bare array", B, sk.simplex, [sk.simplex]),
]
space_cases = pytest.mark.parametrize(("particle", "support", "expected"), SPACES)


@space_cases
def test_every_leaf_gets_the_support_beside_it(particle, support, expected):
    supports = Space.of(particle, support).supports
    assert len(supports) == len(expected)
    assert all(actual is wanted for actual, wanted in zip(supports, expected, strict=True))


@space_cases
def test_a_particle_comes_back_from_its_vector(particle, support, expected):
    space = Space.of(particle, support)
    back = jax.jit(lambda particle: space.constrain(space.unconstrain(particle)))(particle)
    assert jax.tree.structure(back) == jax.tree.structure(particle)
    for actual, leaf in zip(jax.tree.leaves(back), jax.tree.leaves(particle), strict=True):
        np.testing.assert_allclose(actual, leaf, rtol=1e-13)


def test_log_jacobian_of_a_space_is_the_sum_over_its_leaves(key):
    space = Space.of({"a": A, "b": B, "c": A}, {"a": sk.positive, "b": sk.simplex})
    vector = jr.normal(key, (space.layout.size,))
    expected = jnp.sum(vector[:2]) + sk.simplex.log_jacobian(vector[2:6].reshape(2, 2))
    assert space.layout.size == 2 + 4 + 2
    np.testing.assert_allclose(space.log_jacobian(vector), expected, rtol=1e-13)


@pytest.mark.parametrize("support", [None, {}, sk.targets.real])
def test_without_a_support_the_space_is_the_layout(support):
    particle = {"a": A, "b": B}
    space = Space.of(particle, support)
    vector = sk.targets.Layout.of(particle).ravel(particle)
    np.testing.assert_array_equal(space.unconstrain(particle), vector)
    assert space.log_jacobian(vector) == 0


@pytest.mark.parametrize(
    ("particle", "support", "message"),
    [
        pytest.param({"a": A}, {"c": sk.positive}, r"`support` names \['c'\].*\['a'\]", id="unknown key"),
        pytest.param([{"a": A}], [{"c": None}], r"`support\[0\]` names \['c'\]", id="unknown key, nested"),
        pytest.param({"a": A}, {"a": "positive"}, "`support.* must be a support.*got str", id="not a support"),
        pytest.param([A, A], [sk.positive], "`support.* shaped like the parameters", id="too few"),
        pytest.param(
            [A, A],
            (sk.positive, None),
            "`support.*tuple where the parameters have list",
            id="another container",
        ),
        pytest.param(A, {"a": sk.positive}, "`support.* shaped like the parameters", id="container for an array"),
        pytest.param({"a": jnp.array(0.5)}, {"a": sk.simplex}, "axis", id="simplex of a number"),
        pytest.param({"a": jnp.array(0.5)}, {"a": sk.ordered}, "axis", id="ordered number"),
        pytest.param({"a": jnp.zeros(2, int)}, {"a": sk.positive}, "`particles` must be floating", id="integers"),
    ],
)
def test_a_support_that_does_not_fit_is_refused(particle, support, message):
    with pytest.raises(ValueError, match=message):
        Space.of(particle, support)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": jnp.array([1.0, -1.0])}, "must lie inside their support; a has"),
        ({"b": B + 0.1}, "must lie inside their support; b has"),
        ({"a": jnp.array([1.0, jnp.nan])}, "must lie inside their support; a has"),
    ],
)
def test_particles_outside_their_support_are_named(change, message):
    particle = {"a": A, "b": B, "c": A}
    space = Space.of(particle, {"a": sk.positive, "b": sk.simplex})
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), particle, particle)
    space.check(batch)
    with pytest.raises(ValueError, match=f"`particles` {message}"):
        space.check(jax.tree.map(lambda *leaves: jnp.stack(leaves), particle, particle | change))


def test_a_space_of_float32_particles_stays_in_float32():
    particle = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), {"a": A, "b": B})

    def every_use(particle):
        space = Space.of(particle, {"a": sk.interval(0.0, 3.0), "b": sk.simplex})
        vector = space.unconstrain(particle)
        return vector, space.log_jacobian(vector), space.constrain(vector)

    results = jax.eval_shape(every_use, particle)
    assert {leaf.dtype for leaf in jax.tree.leaves(results)} == {np.dtype("float32")}
