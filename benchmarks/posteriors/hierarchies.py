"""Hierarchies: groups that share a distribution whose width is unknown."""

import jax.numpy as jnp
import numpy as np

from .target import Target, half_normal_of_log, like, normal

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])  # Rubin (1981): coaching in eight schools
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _school_priors(mean, log_width):
    """N(0, 10²) on the mean, a half-Cauchy of scale 5 on the width, as a density of its logarithm."""
    return normal(mean, 0.0, 10.0) + log_width - jnp.log1p(jnp.exp(2 * log_width) / 25)


def schools_centered() -> Target:
    def log_density(x):
        mean, log_width, effects = x[0], x[1], x[2:]
        seen, errors = like(x, EFFECTS, ERRORS)
        groups = normal(effects, mean, jnp.full_like(effects, jnp.exp(log_width)))
        return _school_priors(mean, log_width) + groups + normal(seen, effects, errors)

    note = "eight schools, centred: mean, log width, effects; a funnel towards small widths"
    return Target("schools-centred", log_density, 10, "held out", note)


def schools_noncentered() -> Target:
    def log_density(x):
        mean, log_width, standard = x[0], x[1], x[2:]
        seen, errors = like(x, EFFECTS, ERRORS)
        effects = mean + jnp.exp(log_width) * standard
        return _school_priors(mean, log_width) + normal(standard) + normal(seen, effects, errors)

    note = "eight schools, non-centred: mean, log width, standardised effects"
    return Target("schools-noncentred", log_density, 10, "rules", note)


def counties() -> Target:
    rng = np.random.default_rng(21)
    groups = 22
    sizes = rng.integers(2, 13, groups)
    county = np.repeat(np.arange(groups), sizes)
    floor = (rng.uniform(size=county.size) < 0.25).astype(float)
    response = 1.4 + 0.35 * rng.normal(size=groups)[county] - 0.65 * floor + 0.75 * rng.normal(size=county.size)

    def log_density(x):
        mean, slope, log_width, log_noise, standard = x[0], x[1], x[2], x[3], x[4:]
        y, on_floor = like(x, response, floor)
        prior = normal(x[:2], 0.0, 5.0) + half_normal_of_log(log_width, 1.0) + half_normal_of_log(log_noise, 1.0)
        fitted = mean + slope * on_floor + jnp.exp(log_width) * standard[county]
        return prior + normal(standard) + normal(y, fitted, jnp.full_like(y, jnp.exp(log_noise)))

    note = "varying intercepts of 22 counties with 2 to 12 houses each, non-centred"
    return Target("counties", log_density, 26, "held out", note)


def growth() -> Target:
    rng = np.random.default_rng(22)
    groups, days = 10, np.array([8.0, 15.0, 22.0, 29.0, 36.0])
    intercepts, slopes = rng.normal(106, 12, groups), rng.normal(6.2, 0.8, groups)
    weights = intercepts[:, None] + slopes[:, None] * days + 5.0 * rng.normal(size=(groups, days.size))

    def log_density(x):
        means, log_widths, log_noise = x[:2], x[2:4], x[4]
        lines = x[5:].reshape(2, groups)
        y, time = like(x, weights, days)
        prior = normal(means, 0.0, 200.0) + normal(log_widths[0], 2.0, 1.0) + normal(log_widths[1], 0.0, 1.0)
        prior += half_normal_of_log(log_noise, 20.0)
        spread = jnp.broadcast_to(jnp.exp(log_widths)[:, None], lines.shape)
        fitted = lines[0][:, None] + lines[1][:, None] * time[None, :]
        return prior + normal(lines, means[:, None], spread) + normal(y, fitted, jnp.full_like(y, jnp.exp(log_noise)))

    note = "growth of ten rats in grams and days, varying intercepts and slopes, centred: the data are informative"
    return Target("growth-centred", log_density, 25, "rules", note)


TARGETS = (schools_centered(), schools_noncentered(), counties(), growth())
