"""Regressions as people write them: regressors in their own units, weak priors, noise estimated with the rest."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from .target import Target, half_normal_of_log, like, normal


def linear_raw() -> Target:
    rng = np.random.default_rng(1)
    n = 120
    age = rng.uniform(20, 70, n)
    income = rng.lognormal(10.7, 0.5, n)  # a year, in the currency
    rate = rng.normal(0.03, 0.004, n)  # an interest rate
    distance = rng.gamma(2, 4, n)  # kilometres
    married = (rng.uniform(size=n) < 0.6).astype(float)
    features = np.stack([np.ones(n), age, income, rate, distance, married], 1)
    response = features @ np.array([3.0, 0.05, 4e-5, -60.0, -0.12, 1.0]) + 1.5 * rng.normal(size=n)

    def log_density(x):
        design, y = like(x, features, response)
        weights, log_noise = x[:-1], x[-1]
        prior = normal(weights, 0.0, 1000.0) + half_normal_of_log(log_noise, 10.0)
        return prior + normal(y, design @ weights, jnp.full_like(y, jnp.exp(log_noise)))

    note = "linear regression on raw regressors: posterior sds from 1e-5 to 40, intercept correlated with the rest"
    return Target("linear-raw", log_density, 7, "rules", note)


def linear_quadratic() -> Target:
    rng = np.random.default_rng(2)
    age = rng.uniform(18, 75, 80)
    features = np.stack([np.ones_like(age), age, age**2], 1)
    response = 2.0 + 0.9 * age - 0.009 * age**2 + 4.0 * rng.normal(size=age.size)

    def log_density(x):
        design, y = like(x, features, response)
        prior = normal(x[:-1], 0.0, 100.0) + half_normal_of_log(x[-1], 20.0)
        return prior + normal(y, design @ x[:-1], jnp.full_like(y, jnp.exp(x[-1])))

    note = "a quadratic in raw age: sds differ by 10^4 and the coefficients are correlated above 0.95"
    return Target("linear-quadratic", log_density, 4, "held out", note)


def logistic_raw() -> Target:
    rng = np.random.default_rng(3)
    n = 250
    features = np.stack(
        [np.ones(n), rng.normal(52, 12, n), rng.normal(130, 18, n), rng.normal(5.6, 1.1, n), rng.uniform(size=n) < 0.3],
        1,
    )  # age, blood pressure, cholesterol, smoker
    logits = features @ np.array([-11.0, 0.06, 0.03, 0.5, 0.9])
    response = (rng.uniform(size=n) < 1 / (1 + np.exp(-logits))).astype(float)

    def log_density(x):
        design, y = like(x, features, response)
        eta = design @ x
        return normal(x, 0.0, 10.0) + jnp.sum(y * eta - jax.nn.softplus(eta))

    return Target("logistic-raw", log_density, 5, "held out", "logistic regression on raw regressors, far from 0")


def logistic_wide() -> Target:
    rng = np.random.default_rng(4)
    n, d = 200, 25
    mixing = np.eye(d - 1) + 0.3 * rng.normal(size=(d - 1, d - 1)) / np.sqrt(d)
    features = np.concatenate([np.ones((n, 1)), rng.normal(size=(n, d - 1)) @ mixing], 1)
    truth = rng.normal(size=d) * (rng.uniform(size=d) < 0.5)
    response = (rng.uniform(size=n) < 1 / (1 + np.exp(-features @ truth))).astype(float)

    def log_density(x):
        design, y = like(x, features, response)
        eta = design @ x
        return normal(x) + jnp.sum(y * eta - jax.nn.softplus(eta))

    note = "logistic regression with 24 standardised regressors and 200 rows: skewed in many directions"
    return Target("logistic-wide", log_density, d, "rules", note)


def robust() -> Target:
    rng = np.random.default_rng(5)
    n = 80
    features = np.stack([np.ones(n), rng.normal(20, 5, n), rng.gamma(3, 50, n)], 1)
    response = features @ np.array([10.0, 1.5, -0.03]) + 2.0 * rng.standard_t(3, n)

    def log_density(x):
        design, y = like(x, features, response)
        weights, log_scale, log_nu = x[:3], x[3], x[4]
        nu = jnp.exp(log_nu)
        prior = normal(weights, 0.0, 100.0) + half_normal_of_log(log_scale, 10.0)
        prior += 2.0 * log_nu - 0.1 * nu  # Gamma(2, 0.1) on the degrees of freedom, with the Jacobian
        squares = ((y - design @ weights) / jnp.exp(log_scale)) ** 2
        each = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * log_nu - log_scale
        return prior + n * each - jnp.sum((nu + 1) / 2 * jnp.log1p(squares / nu))

    return Target("robust", log_density, 5, "rules", "Student-t regression, degrees of freedom unknown")


def poisson() -> Target:
    rng = np.random.default_rng(6)
    n = 100
    exposure = rng.uniform(0.5, 3.0, n)
    features = np.stack([np.ones(n), rng.normal(15, 6, n), rng.uniform(size=n) < 0.4, rng.uniform(0, 1, n)], 1)
    counts = rng.poisson(exposure * np.exp(features @ np.array([-0.5, 0.06, 0.4, -0.8]))).astype(float)

    def log_density(x):
        design, y, offset = like(x, features, counts, np.log(exposure))
        eta = design @ x + offset
        return normal(x, 0.0, 5.0) + jnp.sum(y * eta - jnp.exp(eta))

    return Target("poisson", log_density, 4, "held out", "Poisson regression with exposures, one raw regressor")


def negative_binomial() -> Target:
    rng = np.random.default_rng(7)
    n = 90
    features = np.stack([np.ones(n), rng.normal(size=n), rng.gamma(2, 1.5, n), rng.uniform(size=n) < 0.5], 1)
    mean = np.exp(features @ np.array([1.2, 0.4, 0.15, -0.6]))
    counts = rng.poisson(mean * rng.gamma(1.8, 1 / 1.8, n)).astype(float)

    def log_density(x):
        design, y = like(x, features, counts)
        eta, log_size = design @ x[:-1], x[-1]
        size = jnp.exp(log_size)
        prior = normal(x[:-1], 0.0, 5.0) + normal(log_size, 0.0, 1.5)
        total = jnp.logaddexp(eta, log_size)  # log(mean + size)
        each = gammaln(y + size) - gammaln(size) + size * (log_size - total) + y * (eta - total)
        return prior + jnp.sum(each)

    return Target("negative-binomial", log_density, 5, "held out", "overdispersed counts, dispersion unknown")


def softmax() -> Target:
    rng = np.random.default_rng(8)
    n, classes = 150, 3
    features = np.stack([np.ones(n), rng.normal(5.8, 0.8, n), rng.normal(3.0, 0.4, n), rng.gamma(4, 0.5, n)], 1)
    truth = np.stack([np.zeros(4), [-5.0, 1.4, -1.0, 0.3], [-4.0, 0.2, 0.4, 0.9]], 1)
    logits = features @ truth + rng.gumbel(size=(n, classes))
    chosen = np.eye(classes)[logits.argmax(1)]

    def log_density(x):
        design, one_hot = like(x, features, chosen)
        weights = x.reshape(4, 2)  # the first class is the base
        eta = jnp.concatenate([jnp.zeros_like(weights[:, :1]), weights], 1)
        return normal(x, 0.0, 5.0) + jnp.sum(one_hot * jax.nn.log_softmax(design @ eta, axis=1))

    return Target("softmax", log_density, 8, "rules", "three classes, raw regressors that are far from centred")


def weibull() -> Target:
    rng = np.random.default_rng(9)
    n = 70
    features = np.stack([np.ones(n), rng.normal(60, 10, n), rng.uniform(size=n) < 0.5], 1)
    scale = np.exp(features @ np.array([5.0, -0.04, 0.6]))
    times = scale * rng.weibull(1.4, n)
    censored_at = rng.uniform(5, 40, n)
    seen = (times <= censored_at).astype(float)
    times = np.minimum(times, censored_at)

    def log_density(x):
        design, log_time, event = like(x, features, np.log(times), seen)
        weights, log_shape = x[:3], x[3]
        standardised = jnp.exp(log_shape) * (log_time - design @ weights)
        prior = normal(weights, 0.0, 10.0) + normal(log_shape, 0.0, 1.0)
        return prior + jnp.sum(event * (log_shape + standardised) - jnp.exp(standardised))

    return Target("weibull", log_density, 4, "held out", "survival times, a third of them censored, raw age")


def gamma() -> Target:
    times = np.random.default_rng(10).gamma(2.5, 40.0, 15)

    def log_density(x):
        log_shape, log_rate = x
        shape = jnp.exp(log_shape)
        logs, total = float(np.log(times).sum()), float(times.sum())
        prior = normal(log_shape, 0.0, 2.0) + normal(log_rate, 0.0, 5.0)
        return prior + times.size * (shape * log_rate - gammaln(shape)) + shape * logs - jnp.exp(log_rate) * total

    note = "shape and rate of 15 waiting times, both positive: correlated and skewed"
    return Target("gamma", log_density, 2, "rules", note)


TARGETS = (
    linear_raw(),
    linear_quadratic(),
    logistic_raw(),
    logistic_wide(),
    robust(),
    poisson(),
    negative_binomial(),
    softmax(),
    weibull(),
    gamma(),
)
