"""Time series: autoregression, volatility, hidden states."""

import jax
import jax.numpy as jnp
import numpy as np

from .target import Target, half_normal_of_log, like, log_normal_density, normal


def autoregression() -> Target:
    rng = np.random.default_rng(41)
    series = [20.0, 21.0]
    for _ in range(150):
        series.append(3.0 + 1.1 * series[-1] - 0.25 * series[-2] + 1.2 * rng.normal())
    values = np.array(series)
    features = np.stack([np.ones(150), values[1:-1], values[:-2]], 1)

    def log_density(x):
        design, y = like(x, features, values[2:])
        prior = normal(x[0], 0.0, 10.0) + normal(x[1:3], 0.0, 1.0) + half_normal_of_log(x[3], 5.0)
        return prior + normal(y, design @ x[:3], jnp.full_like(y, jnp.exp(x[3])))

    return Target("ar2", log_density, 4, "rules", "an autoregression of order 2 around a level of 20")


def garch() -> Target:
    rng = np.random.default_rng(42)
    variance, returns = 1.0, []
    for _ in range(300):
        returns.append(np.sqrt(variance) * rng.normal())
        variance = 0.1 + 0.15 * returns[-1] ** 2 + 0.75 * variance
    values = np.array(returns) + 0.05
    spread = float(values.var())

    def log_density(x):
        mean, log_floor, persistence, share = x[0], x[1], jax.nn.sigmoid(x[2]), jax.nn.sigmoid(x[3])
        squares = (like(x, values) - mean) ** 2

        def step(variance, square):
            following = jnp.exp(log_floor) + persistence * (share * square + (1 - share) * variance)
            return following, -0.5 * (jnp.log(variance) + square / variance)

        _, terms = jax.lax.scan(step, jnp.full_like(mean, spread), squares)
        prior = normal(mean, 0.0, 1.0) + normal(log_floor, -1.0, 1.5)
        return prior + normal(x[2], 2.0, 1.0) + normal(x[3], -1.0, 1.0) + jnp.sum(terms)

    note = "GARCH(1, 1) of 300 returns; persistence and the share of the last return in (0, 1) by logits"
    return Target("garch", log_density, 4, "rules", note)


def stochastic_volatility() -> Target:
    rng = np.random.default_rng(43)
    length = 40
    log_variance = [rng.normal(0, 0.6)]
    for _ in range(length - 1):
        log_variance.append(0.9 * log_variance[-1] + 0.3 * rng.normal())
    values = np.exp(np.array(log_variance) / 2 - 0.5) * rng.normal(size=length)

    def log_density(x):
        level, log_step, logit, standard = x[0], x[1], x[2], x[3:]
        low = jax.nn.sigmoid(-logit)  # the autoregression is 1 - 2 low
        prior = normal(level, 0.0, 3.0) + half_normal_of_log(log_step, 0.5)
        prior += 19.0 * jax.nn.log_sigmoid(logit) + 0.5 * jnp.log(low)  # Beta(20, 1.5) on (1 + autoregression) / 2
        prior += jax.nn.log_sigmoid(logit) + jnp.log(low)  # the Jacobian
        step = jnp.exp(log_step)
        first = standard[0] * step / jnp.sqrt(4 * low * (1 - low))

        def follow(state, innovation):
            state = (1 - 2 * low) * state + step * innovation
            return state, state

        _, rest = jax.lax.scan(follow, first, standard[1:])
        states = level + jnp.concatenate([first[None], rest])
        return prior + normal(standard) + normal(like(x, values), 0.0, jnp.exp(states / 2))

    note = "40 returns, non-centred: level, log step, logit of the autoregression, standardised innovations"
    return Target("stochastic-volatility", log_density, length + 3, "held out", note)


def hidden_markov() -> Target:
    rng = np.random.default_rng(44)
    stay, state, values = (0.92, 0.85), 0, []
    for _ in range(150):
        state = state if rng.uniform() < stay[state] else 1 - state
        values.append((1.0, 4.0)[state] + rng.normal())
    observed = np.array(values)

    def log_density(x):
        low, log_gap, log_noise, stays = x[0], x[1], x[2], x[3:]
        means = jnp.stack([low, low + jnp.exp(log_gap)])
        log_stay, log_leave = jax.nn.log_sigmoid(stays), jax.nn.log_sigmoid(-stays)
        transition = jnp.stack(
            [jnp.stack([log_stay[0], log_leave[0]]), jnp.stack([log_leave[1], log_stay[1]])]
        )  # from row to column
        y = like(x, observed)
        emissions = log_normal_density(y[:, None], means[None, :], jnp.exp(log_noise))

        def step(alpha, emission):
            alpha = jax.nn.logsumexp(alpha[:, None] + transition, axis=0) + emission
            return alpha, None

        alpha, _ = jax.lax.scan(step, emissions[0] - float(np.log(2)), emissions[1:])
        prior = normal(low, 0.0, 10.0) + normal(log_gap, 0.0, 1.0) + normal(log_noise, 0.0, 1.0)
        return prior + normal(stays, 1.0, 1.5) + jax.nn.logsumexp(alpha)

    note = "two states with ordered means, summed out by the forward algorithm; 150 observations"
    return Target("hidden-markov", log_density, 5, "held out", note)


TARGETS = (autoregression(), garch(), stochastic_volatility(), hidden_markov())
