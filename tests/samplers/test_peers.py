"""Beside other implementations: one trajectory as frozen numbers, and defects found in them that must not be ours.

Of the defects, these are tested where they belong: no warm restart (`test_fit`), a compilation for every run
(`test_compilation`), one particle or equal particles (`test_sampler_contract`), wrong means of constrained parameters
(`test_fit`, besides the score here), wrong gradients of kernels (`test_matrix_kernel`).
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from tests.helpers.oracles import median_bandwidth

pytestmark = pytest.mark.thorough


def banana(x):
    return -0.5 * x[0] ** 2 / 4 - 0.5 * (x[1] - 0.5 * x[0] ** 2 + 1) ** 2


# `blackjax.svgd(jax.grad(banana), optax.adagrad(0.3, initial_accumulator_value=0.0), kernel=rbf_kernel,
# update_kernel_parameters=lambda state: state)` with {"length_scale": 1.5}, that is exp(-r²/1.5), so h = 0.75 here;
# 20 steps in float64 from 2 sin(1 + [[0, 1], ..., [12, 13]]).
# BlackJAX 1.7.1, optax 0.2.8, jax 0.10.2 (CPU), Python 3.11.7.
BLACKJAX = np.array(
    [
        [2.2822196895692053, 0.925638039165614],
        [-0.05749815349871463, -1.4920460817523709],
        [-1.331530270821105, 0.5187092747976302],
        [1.7308484677603784, 1.205623194306879],
        [1.063732199403628, -0.8608045407621238],
        [-1.2275171939537877, -0.7048146263903959],
        [0.9202381824875588, 0.6006462801260021],
    ]
)


def test_vanilla_trajectory_is_that_of_blackjax():
    start = 2 * jnp.sin(1 + jnp.arange(14.0).reshape(7, 2))
    result = sk.fit(jr.key(0), banana, sk.svgd(sk.RBF(0.75), optimizer=0.3), start, num_steps=20)
    np.testing.assert_allclose(result.particles, BLACKJAX, rtol=1e-10)


# A target whose score and Hessian are written out, and the formulas of the papers in NumPy.


def curved(x):
    return -jnp.sum(jnp.cosh(x)) - 0.25 * jnp.sum(x) ** 2


def curved_scores(points):
    return -np.sinh(points) - 0.5 * points.sum(1, keepdims=True)


def curved_hessians(points):
    return np.stack([np.diag(np.cosh(point)) + 0.5 for point in points])


def svgd_velocity(points, scores, bandwidth, metric):
    """(1/n) Σ_j Q⁻¹ [k s_j + ∇_j k] with k = exp(−‖x_i − x_j‖²_Q / 2h): Wang et al. (2019), Eqs. (13) and (14)."""
    offsets = (points[:, None] - points[None]) @ metric
    values = np.exp(-0.5 * np.sum(offsets * (points[:, None] - points[None]), axis=-1) / bandwidth)
    standard = values @ scores + np.einsum("ij,ijd->id", values, offsets) / bandwidth
    return standard @ np.linalg.inv(metric) / len(points)


@pytest.fixture
def points(key):
    return np.asarray(jr.normal(key, (5, 2)))


def steps_of(sampler, points, num_steps: int, log_density=curved):
    """The particles before and after every step."""
    target = sk.LogDensity(log_density).bind(jnp.asarray(points[0]))
    step = jax.jit(lambda state: sampler.step(jr.key(0), state, target)[0])
    states = [sampler.init(target, jnp.asarray(points))]
    for _ in range(num_steps):
        states.append(step(states[-1]))
    return [np.asarray(state.points) for state in states]


def test_the_default_is_the_update_of_liu_and_wang(points):
    before, after = steps_of(sk.svgd(optimizer=optax.sgd(1.0)), points, 1)
    expected = svgd_velocity(points, curved_scores(points), median_bandwidth(points), np.eye(2))
    np.testing.assert_allclose(after - before, expected, rtol=1e-10)


def test_the_first_step_of_adagrad_counts_its_own_gradient(points):
    start, first, second = steps_of(sk.svgd(), points, 2)
    velocities = [svgd_velocity(x, curved_scores(x), median_bandwidth(x), np.eye(2)) for x in (start, first)]
    total = np.zeros_like(points)
    for velocity, move in zip(velocities, [first - start, second - first], strict=True):
        total = total + velocity**2
        np.testing.assert_allclose(move, 0.3 * velocity / np.sqrt(total + 1e-7), rtol=1e-9)


def test_average_preconditions_by_the_inverse_of_the_mean_with_the_kernel_in_its_metric(points):
    sampler = sk.matrix_svgd("average", sk.Hessian(), sk.RBF(0.7), optax.sgd(1.0), damping=1e-14)
    before, after = steps_of(sampler, points, 1)
    metric = curved_hessians(points).mean(0)
    np.testing.assert_allclose(after - before, svgd_velocity(points, curved_scores(points), 0.7, metric), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # three steps are too few
def test_the_arrays_of_the_caller_are_not_written_to(points):
    given = {"particles": points.copy(), "anchors": points[:2] + 0.1, "data": np.arange(10.0), "hessian": np.eye(2)}
    for array in given.values():
        array.flags.writeable = False
    kept = jax.tree.map(np.copy, given)
    sampler = sk.matrix_svgd("mixture", sk.Hessian(diagonal=True), sk.kernels.Linear(), anchors=given["anchors"])
    target = sk.Posterior(
        lambda x: -0.5 * x @ given["hessian"] @ x, lambda x, row: -0.5 * (row - jnp.sum(x)) ** 2, len(given["data"])
    )
    sk.fit(jr.key(0), target, sampler, given["particles"], given["data"], num_steps=3, batch_size=4)
    for name, array in given.items():
        np.testing.assert_array_equal(array, kept[name])
