"""KFAC in samplers: curvatures at many particles, velocities against dense metrics by hand, and fits."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.linalg.metrics import DenseMetric
from tests.helpers.kfac_cases import NUM_DATA, Case, Example, flat, jit, log_prior, measured_in
from tests.helpers.oracles import assert_close
from tests.linalg.test_operators import dense_matrix

pytestmark = pytest.mark.thorough

DAMPING, BASE, PARTICLES = 0.1, sk.kernels.Isotropic(sk.RBF(0.7)), 4
TINY = Case("one layer and unknown noise", sk.GaussianNoise(), None, (2, 2), (True,))


@pytest.fixture
def cloud(generator) -> tuple[jax.Array, Example]:
    """Particles and data."""
    points = np.stack([flat(TINY.network(generator)) for _ in range(PARTICLES)])
    return jnp.asarray(points), TINY.data(generator, NUM_DATA)


@jit
def at_each(points, data) -> tuple[sk.linalg.AbstractOperator, sk.linalg.AbstractOperator, jax.Array]:
    """The curvature at every particle, its mean, and the scores."""
    each = TINY.kfac.at(TINY.target, points, data)
    return each, each.average(), TINY.target.scores(points, data)


def particle(batch, which: int):
    return jax.tree.map(lambda leaf: leaf[which], batch)


def test_curvatures_at_many_points_are_those_at_each(cloud):
    points, data = cloud
    each, mean, _ = at_each(points, data)
    alone = [measured_in(TINY, point, data) for point in points]
    for which, own in enumerate(alone):
        for actual, expected in zip(*map(jax.tree.leaves, (particle(each, which), own)), strict=True):
            assert_close(actual, expected)
    for i, leaf in enumerate(jax.tree.leaves(mean)):
        assert_close(leaf, np.mean([jax.tree.leaves(own)[i] for own in alone], axis=0))


def dense_metric(operator, place) -> DenseMetric:
    """The metric of some coordinates, by dense linear algebra."""
    matrix = dense_matrix(operator, DAMPING)[np.ix_(place, place)]
    root = np.linalg.cholesky(matrix).T
    return DenseMetric(*map(jnp.asarray, (root, np.linalg.inv(root), np.linalg.slogdet(matrix)[1])))


@jit
def dense_velocity(metrics: list[DenseMetric], points: list[jax.Array], scores: list[jax.Array], mixed: bool):
    """The velocity of every block of coordinates, each by a kernel of its own; of a batch of metrics for a mixture."""

    def velocity(metric, points, scores):
        kernel = (
            sk.kernels.Mixture.of(BASE, metric, points, points) if mixed else sk.kernels.Preconditioned(BASE, metric)
        )
        return kernel.velocity(points, sk.kernels.Scored.uniform(points, scores))

    return jnp.concatenate([velocity(*each) for each in zip(metrics, points, scores, strict=True)], axis=1)


@pytest.mark.parametrize("kind", ["average", "mixture"])
@pytest.mark.parametrize("per_block", [False, True], ids=["one kernel", "a kernel a block"])
def test_the_velocity_is_that_of_dense_metrics_by_hand(kind, per_block, cloud, key):
    points, data = cloud
    each, mean, scores = at_each(points, data)
    sampler = sk.matrix_svgd(kind, TINY.kfac, BASE, optax.sgd(1.0), damping=DAMPING, per_block=per_block)

    @jit
    def moved(points):
        return sampler.step(key, sampler.init(TINY.target, points, data), TINY.target, data)[0].points

    ends = np.cumsum([part.size for part in mean.parts])
    places = np.split(np.arange(ends[-1]), ends[:-1]) if per_block else [np.arange(ends[-1])]
    if kind == "average":
        metrics = [dense_metric(mean, place) for place in places]
    else:
        own = [[dense_metric(particle(each, i), place) for i in range(PARTICLES)] for place in places]
        metrics = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *batch) for batch in own]
    columns = [[cloud[:, place] for place in places] for cloud in (points, scores)]
    assert_close(moved(points) - points, dense_velocity(metrics, *columns, kind == "mixture"))


@jit
def mean_density(points, data) -> jax.Array:
    return jnp.mean(TINY.target.log_densities(points, data))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("average", {"per_block": True}, id="average, a kernel a block"),
        pytest.param("mixture", {"temperature": sk.Median()}, id="mixture"),  # the README has one with a kernel a block
    ],
)
def test_a_few_steps_of_fit_on_minibatches_raise_the_density(kind, options, cloud, key):
    points, data = cloud
    steps = {"decay": 0.9, "measure_every": 2, "refresh_every": 4}
    sampler = sk.matrix_svgd(kind, TINY.kfac, optimizer=0.1, damping=DAMPING, **steps, **options)
    start = jit(lambda points: jax.vmap(TINY.target.constrain)(points))(points)
    result = sk.fit(key, TINY.target.target, sampler, start, data, num_steps=9, batch_size=3)
    assert result.status is sk.Status.FINISHED
    assert mean_density(result.points, data) > mean_density(points, data) + 1


class Tokens(NamedTuple):
    rows: jax.Array
    label: jax.Array


def mapped(parameters, example):
    """Layers over the rows of an example, and over their mean."""
    first, second = parameters["layers"]
    return second(jnp.mean(jnp.tanh(jax.vmap(first)(example.rows)), axis=0))


def weights_in_a_condition(parameters, example):
    first, second = parameters["layers"]
    row = example.rows[0]
    return second(jax.lax.cond(row[0] > 0, lambda: first(row), lambda: jnp.tanh(first(row))))


def mapped_fit(model, key):
    def log_likelihood(parameters, example):
        return sk.Categorical().log_prob(mapped(parameters, example), example.label)

    generator = np.random.default_rng(0)
    case = Case("mapped", sk.Categorical(), jnp.tanh, (2, 3, 2))
    start = [case.network(generator) for _ in range(3)]
    start = jax.tree.map(lambda *leaves: jnp.stack(leaves), *start)
    rows, labels = generator.standard_normal((NUM_DATA, 4, 2)), generator.integers(0, 2, NUM_DATA)
    target = sk.Posterior(log_prior, log_likelihood, NUM_DATA)
    sampler = sk.matrix_svgd("average", sk.KFAC(model, sk.Categorical()), optimizer=0.1, damping=DAMPING)
    return sk.fit(key, target, sampler, start, Tokens(jnp.asarray(rows), jnp.asarray(labels)), num_steps=3)


def test_a_fit_of_a_network_with_layers_over_tokens_ends_well(key):
    result = mapped_fit(mapped, key)
    assert result.status is sk.Status.FINISHED
    assert result.diagnostics.faults.moved_back == result.diagnostics.faults.damped == 0


def test_a_fit_is_refused_before_its_first_step_where_weights_cannot_be_followed(key):
    with pytest.raises(ValueError, match=r"`KFAC` cannot follow `layers\.0\.weight`: .*`cond`"):
        mapped_fit(weights_in_a_condition, key)


@pytest.mark.parametrize("kind", ["average", "mixture"])
def test_a_kernel_a_block_needs_curvature_in_blocks(kind, cloud, key):
    points, data = cloud
    rule = sk.matrix_svgd(kind, TINY.fisher, per_block=True).rule
    with pytest.raises(ValueError, match="`per_block` needs curvature in blocks, such as `KFAC`, got DenseMetric"):
        jax.eval_shape(
            lambda points: rule.update(rule.init(TINY.target, points, data), TINY.target, points, data), points
        )
