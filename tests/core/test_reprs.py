"""Samplers, kernels, targets, curvature and what results hold print on one line."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steinkern as sk


def log_density(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (sk.RBF(), "RBF(bandwidth=Median())"),
        (sk.RBF(2.0), "RBF(bandwidth=2)"),
        (sk.Hessian(), "Hessian()"),
        (sk.Fisher(log_density, sk.Bernoulli()), "Fisher(model=log_density, likelihood=Bernoulli())"),
        (sk.LogDensity(log_density), "LogDensity(function=log_density)"),
        (sk.LogDensity(log_density).bind(jnp.zeros(30)), "BoundTarget(target=LogDensity(function=log_density))"),
        (sk.sgld(0.5), "SGLD(step_size=0.5)"),
        (sk.interval(0, 1), "Interval(lower=0, upper=1)"),
        (sk.samplers.MetricSettings(damping=0.1), "MetricSettings(damping=0.1)"),
        (sk.results.Prediction(jnp.ones((40, 300), jnp.int32), 0.9), "Prediction(values=int32[40, 300], level=0.9)"),
    ],
    ids=str,
)
def test_a_module_is_written_as_one_would_write_it(value, expected):
    assert repr(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        sk.svgd(),
        sk.matrix_svgd("mixture", sk.Hessian(), optimizer=optax.adam(0.1)),
        sk.svn(sk.Hessian()),
        sk.half_bayesian(sk.svgd(), optax.adam(1e-2)),
        sk.Posterior(lambda p: 0.0, lambda p, e: 0.0, num_data=3, support={"a": sk.positive}),
        sk.Graphical.coordinatewise(sk.RBF(1.0), 3),
        sk.History(np.arange(40), *np.ones((3, 40)), {"a": np.zeros((40, 5, 3))}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_repr_is_one_line_without_addresses(value):
    assert "\n" not in repr(value)
    assert "0x" not in repr(value)
    assert len(repr(value)) < 300
