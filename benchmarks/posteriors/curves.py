"""Curves and clusters: a Gaussian process, differential equations, a network's last layer, a mixture."""

import jax
import jax.numpy as jnp
import numpy as np

from .target import Target, half_normal_of_log, like, log_normal_density, normal


def gaussian_process() -> Target:
    rng = np.random.default_rng(51)
    inputs = np.sort(rng.uniform(0, 10, 35))
    response = 1.5 * np.sin(inputs) + 0.3 * inputs + 0.3 * rng.normal(size=inputs.size)
    squares = np.subtract.outer(inputs, inputs) ** 2

    def log_density(x):
        amplitude, length, noise = jnp.exp(x)
        r2, y = like(x, squares, response)
        diagonal = (noise**2 + 1e-6 * amplitude**2) * jnp.eye(y.size, dtype=x.dtype)
        factor = jnp.linalg.cholesky(amplitude**2 * jnp.exp(-0.5 * r2 / length**2) + diagonal)
        whitened = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        prior = normal(x, like(x, [0.0, 0.0, -1.0]), 1.0)
        return prior - 0.5 * whitened @ whitened - jnp.sum(jnp.log(jnp.diagonal(factor)))

    note = "logarithms of amplitude, length and noise of a Gaussian process on 35 points, the curve integrated out"
    return Target("gaussian-process", log_density, 3, "rules", note)


def _runge_kutta(slope, state, dt: float, steps: int):
    """The classical method of order 4; the states after each step."""

    def step(state, _):
        k1 = slope(state)
        k2 = slope(state + dt / 2 * k1)
        k3 = slope(state + dt / 2 * k2)
        k4 = slope(state + dt * k3)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state, state

    return jax.lax.scan(step, state, length=steps)[1]


def logistic_growth() -> Target:
    rng = np.random.default_rng(52)
    times = np.arange(1, 21) * 0.5
    exact = 120 / (1 + (120 / 4 - 1) * np.exp(-0.9 * times))
    observed = np.log(exact) + 0.12 * rng.normal(size=times.size)

    def log_density(x):
        log_rate, log_capacity, log_first, log_noise = x

        def slope(log_size):
            return jnp.exp(log_rate) * (1 - jnp.exp(log_size - log_capacity))

        path = _runge_kutta(slope, log_first, 0.1, 100)[4::5]
        y = like(x, observed)
        prior = normal(log_rate, 0.0, 1.0) + normal(log_capacity, 4.0, 2.0) + normal(log_first, 0.0, 2.0)
        return prior + half_normal_of_log(log_noise, 0.5) + normal(y, path, jnp.full_like(y, jnp.exp(log_noise)))

    note = "an ODE: logistic growth, logarithms of rate, capacity, first size and noise, 20 observations"
    return Target("logistic-growth", log_density, 4, "rules", note)


def predators() -> Target:
    rng = np.random.default_rng(53)
    first = np.log([1.5, 0.6])

    def path(log_rates, state):
        birth, eaten, death, fed = jnp.exp(log_rates)

        def slope(logs):
            prey, hunters = jnp.exp(logs)
            return jnp.stack([birth - eaten * hunters, fed * prey - death])

        return _runge_kutta(slope, state, 0.1, 120)[5::6]

    with jax.enable_x64(True):
        exact = np.asarray(path(jnp.asarray(np.log([0.7, 0.9, 0.8, 0.6])), jnp.asarray(first)))
    observed = exact + 0.2 * rng.normal(size=exact.shape)

    def log_density(x):
        log_rates, log_noise = x[:4], x[4:]
        y, state = like(x, observed, first)
        prior = normal(log_rates, 0.0, 0.5) + half_normal_of_log(log_noise, 0.5)
        return prior + normal(y, path(log_rates, state), jnp.broadcast_to(jnp.exp(log_noise)[None, :], y.shape))

    note = "an ODE: Lotka and Volterra's prey and predators, logarithms of four rates and two noises"
    return Target("lotka-volterra", log_density, 6, "held out", note)


def last_layer() -> Target:
    rng = np.random.default_rng(54)
    n, units = 100, 30
    inputs = rng.uniform(-2, 2, (n, 2))
    hidden = np.tanh(inputs @ (1.2 * rng.normal(size=(2, units))) + rng.normal(size=units))
    features = np.concatenate([np.ones((n, 1)), hidden], 1)
    response = np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1] ** 2 + 0.2 * rng.normal(size=n)

    def log_density(x):
        design, y = like(x, features, response)
        weights, log_noise = x[:-1], x[-1]
        prior = normal(weights) + half_normal_of_log(log_noise, 1.0)
        return prior + normal(y, design @ weights, jnp.full_like(y, jnp.exp(log_noise)))

    note = "last layer of a network, 30 fixed random tanh units and a bias, and the logarithm of the noise"
    return Target("last-layer", log_density, units + 2, "held out", note)


def mixture() -> Target:
    rng = np.random.default_rng(55)
    values = np.concatenate([rng.normal(-1.0, 0.7, 45), rng.normal(2.0, 1.1, 75)])

    def log_density(x):
        low, log_gap, log_sds, logit = x[0], x[1], x[2:4], x[4]
        means = jnp.stack([low, low + jnp.exp(log_gap)])
        log_weights = jnp.stack([jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)])
        each = log_normal_density(like(x, values)[:, None], means[None, :], jnp.exp(log_sds)[None, :])
        likelihood = jnp.sum(jax.nn.logsumexp(log_weights[None, :] + each, axis=1))
        prior = normal(low, 0.0, 3.0) + normal(log_gap, 0.0, 1.0) + normal(log_sds, 0.0, 0.7) + normal(logit, 0.0, 1.0)
        return prior + likelihood

    note = "two Gaussian clusters that overlap, means ordered: one mode, and a long tail towards equal means"
    return Target("mixture", log_density, 5, "held out", note)


TARGETS = (gaussian_process(), logistic_growth(), predators(), last_layer(), mixture())
