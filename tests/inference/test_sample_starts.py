"""Where the searches of `sample` begin without a start: priors whose draws may be far from the posterior."""

from itertools import chain

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from steinkern.inference.sample.evaluation import Evaluator
from steinkern.inference.sample.randomness import even_noise, generators
from steinkern.inference.sample.start import CHAINS, bind, candidate_starts, find_start
from steinkern.interop._model import as_target_or_model

pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")

import numpyro
import numpyro.distributions as dist

pytestmark = pytest.mark.thorough

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.standard_normal((50, 32))
RESPONSE = FEATURES[:, :4] @ np.array([2.0, -1.5, 1.0, -2.5]) + 0.5 * RANDOM.standard_normal(50)


def horseshoe():
    local = numpyro.sample("local", dist.HalfCauchy(jnp.ones(32)))
    shared = numpyro.sample("shared", dist.HalfCauchy(1.0))
    standard = numpyro.sample("standard", dist.Normal(jnp.zeros(32), 1.0))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    mean = jnp.asarray(FEATURES) @ (local * shared * standard)
    numpyro.sample("y", dist.Normal(mean, precision**-0.5), obs=jnp.asarray(RESPONSE))


def sparse_shares():
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.full(10, 0.1)))
    numpyro.sample("x", dist.Categorical(shares), obs=jnp.array([0, 0, 1, 1, 3]))


def search(model, seed):
    key = jr.key(seed)
    random = generators(key, 1)[0]
    target = as_target_or_model(model)
    starts = candidate_starts(key, target, None)
    first = next(starts)
    bound, particle, _ = bind(target, first, None, False)
    evaluator = Evaluator(bound, particle, even_noise(random, CHAINS, bound.space.layout.size), None)
    return find_start(random, evaluator, chain([first], starts), from_caller=False), bound


@pytest.mark.parametrize("model", [horseshoe, sparse_shares])
def test_a_posterior_is_found_from_draws_of_the_prior_and_points_near_the_origin(model):
    bounds = []
    for seed in (1, 2) if model is horseshoe else range(10):
        start, _ = search(model, seed)
        assert start.problem is None
        bounds.append(start.nearest.bound)
    assert max(bounds) - min(bounds) < 10  # nats: all of them cover the same mass


def test_shares_that_were_seen_have_most_of_the_mass():
    start, bound = search(sparse_shares, 2)
    shares = np.stack([bound.space.constrain(point)["shares"] for point in start.cloud.points]).mean(axis=0)
    # The nearest Gaussian in unconstrained coordinates has the posterior's shares only nearly.
    np.testing.assert_allclose(shares[[0, 1, 3]], [2.1 / 6, 2.1 / 6, 1.1 / 6], atol=0.1)
