"""The layout of a pytree in a vector, and what is said of particles that cannot have one."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.particles import Layout, Scored, check_particles


class Affine(NamedTuple):
    slope: jax.Array
    offset: jax.Array


class Layer(eqx.Module):
    weight: jax.Array
    name: str = eqx.field(static=True, default="layer")


def _filled(tree):
    """The same pytree with leaves counted 0, 1, 2, … in the order that the vector promises."""
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(tree)]
    starts = np.cumsum([0, *sizes])
    leaves = [
        jnp.asarray(start + np.arange(size, dtype=float).reshape(np.shape(leaf)))
        for start, size, leaf in zip(starts, sizes, jax.tree.leaves(tree), strict=False)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


NESTED = _filled({"layers": [Layer(np.zeros((2, 3))), Affine(np.zeros(2), np.zeros(()))], "alone": (np.zeros((1, 1)),)})
PYTREES = {
    "bare vector": _filled(np.zeros(3)),
    "bare scalar": _filled(np.zeros(())),
    "dictionary": _filled({"b": np.zeros((2, 2)), "a": np.zeros(3)}),
    "nested": NESTED,
    "with an empty leaf": _filled({"a": np.zeros((2, 0)), "b": np.zeros(2)}),
}
pytrees = pytest.mark.parametrize("particle", PYTREES.values(), ids=PYTREES.keys())


@pytrees
def test_vector_holds_the_leaves_in_order_and_row_major(particle):
    layout = Layout.of(particle)
    np.testing.assert_array_equal(layout.ravel(particle), np.arange(layout.size, dtype=float))


@pytrees
def test_unravel_undoes_ravel(particle):
    layout = Layout.of(particle)
    assert eqx.tree_equal(layout.unravel(layout.ravel(particle)), particle)


@pytrees
def test_slices_find_every_named_leaf_in_the_vector(particle):
    layout = Layout.of(particle)
    vector = np.asarray(layout.ravel(particle))
    pieces = [vector[layout.slices[name]] for name in layout.names]
    for piece, leaf in zip(pieces, jax.tree.leaves(particle), strict=True):
        np.testing.assert_array_equal(piece, np.ravel(leaf))


@pytrees
def test_every_coordinate_has_a_name_of_its_own(particle):
    layout = Layout.of(particle)
    names = list(layout.coordinate_names())
    assert len(set(names)) == layout.size
    assert [layout.coordinate_name(index) for index in range(layout.size)] == names


def test_names_spell_the_path_of_every_leaf_and_the_index_of_every_coordinate():
    layout = Layout.of(NESTED)
    assert layout.names == ("alone.0", "layers.0.weight", "layers.1.slope", "layers.1.offset")
    assert layout.slices["layers.0.weight"] == slice(1, 7)
    names = list(layout.coordinate_names())
    assert names[0] == "alone.0[0,0]"
    assert names[5] == "layers.0.weight[1,1]"
    assert names[-1] == "layers.1.offset"


def test_a_batch_of_vectors_unravels_under_vmap_to_a_leading_axis(key):
    layout = Layout.of(NESTED)
    batch = jax.vmap(layout.unravel)(jr.normal(key, (4, layout.size)))
    assert [leaf.shape for leaf in jax.tree.leaves(batch)] == [(4, *shape) for shape in layout.shapes]


def test_an_equal_layout_is_not_traced_again():
    traces = []

    @jax.jit
    def unravel(layout, vector):
        traces.append(layout)
        return layout.unravel(vector)

    for _ in range(2):
        unravel(Layout.of(NESTED), jnp.zeros(Layout.of(NESTED).size))
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_layout_and_vector_keep_the_dtype(dtype):
    particle = {"a": jnp.zeros(2, dtype), "b": jnp.zeros((), dtype)}
    layout = Layout.of(particle)
    assert layout.dtype == dtype
    assert {leaf.dtype for leaf in jax.tree.leaves(layout.unravel(layout.ravel(particle)))} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    "particles",
    [jnp.zeros((4, 2)), {"a": jnp.zeros(4), "b": jnp.zeros((4, 2, 3))}, {"a": jnp.zeros(4), "b": jnp.zeros((4, 0))}],
)
def test_the_leading_axis_is_the_number_of_particles(particles):
    assert check_particles(particles) == 4


def test_uniform_weights_are_those_of_the_empirical_measure(key):
    points = jr.normal(key, (5, 2))
    np.testing.assert_allclose(Scored.uniform(points, points).weights, np.full(5, 1 / 5), rtol=1e-15)


def test_shared_parameters_of_another_structure_are_refused_with_the_way_out():
    particle, shared = {"output": jnp.zeros(2)}, {"network": jnp.zeros(3)}
    message = "`shared` must have the structure .* got network beside particles of output. `steinkern.split` makes both"
    with pytest.raises(ValueError, match=message):
        sk.merge(particle, shared)
    log_prior = lambda parameters: -jnp.sum(parameters["output"] ** 2)  # noqa: E731
    target = sk.Posterior(log_prior, lambda parameters, row: jnp.zeros(()), num_data=3, shared=shared)
    with pytest.raises(ValueError, match=message):
        sk.fit(jr.key(0), target, sk.svgd(), {"output": jnp.zeros((4, 2))}, data=jnp.zeros(3), num_steps=1)
