"""Models as users of NumPyro write them: constrained sites, plates, deterministic sites, and no start.

The targets hold NumPyro's own log density in its unconstrained coordinates. Their functions are what a user looks at
beside the latent sites: products, exponentials, shares, forecasts.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.experimental.ode import odeint
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import constrain_fn, potential_energy

from .target import Half, Target


def free_values(model: Callable[[], Any], x: Any) -> dict[str, Any]:
    """The unconstrained values of the latent sites at a vector, in which they are sorted by name."""

    def draw() -> dict[str, Any]:
        trace = handlers.trace(handlers.seed(model, 0)).get_trace()
        latent = {name: site for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
        return {name: dist.biject_to(latent[name]["fn"].support).inv(latent[name]["value"]) for name in sorted(latent)}

    values = jax.eval_shape(draw)
    ends = np.cumsum([value.size for value in values.values()])
    parts = jnp.split(x, ends[:-1])
    return {name: part.reshape(values[name].shape) for name, part in zip(values, parts, strict=True)}


def of_model(
    name: str, model: Callable[[], Any], dim: int, half: Half, look: Callable[[dict[str, Any]], list[Any]], note: str
) -> Target:
    """The target of a model; `look` makes the functions from the values of all sites, deterministic ones included."""
    seeded = handlers.seed(model, 0)

    def log_density(x: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # inside NumPyro
            return -potential_energy(seeded, (), {}, free_values(model, x)).astype(x.dtype)

    def functions(x: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            sites = constrain_fn(seeded, (), {}, free_values(model, x), return_deterministic=True)
            return jnp.concatenate([jnp.ravel(part) for part in look(sites)])

    return Target(name, log_density, dim, half, note, model, functions)


# --- shrinkage and sparse vectors ---


def horseshoe() -> Target:
    rng = np.random.default_rng(61)
    features = rng.normal(size=(50, 32))
    response = features[:, [3, 11, 20, 27]] @ np.array([2.0, -1.5, 1.0, 3.0]) + 0.6 * rng.normal(size=50)

    def model():
        lam = numpyro.sample("lam", dist.HalfCauchy(jnp.ones(32)))
        tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
        z = numpyro.sample("z", dist.Normal(jnp.zeros(32), 1.0))
        precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
        beta = numpyro.deterministic("beta", lam * tau * z)
        numpyro.sample("y", dist.Normal(features @ beta, precision**-0.5), obs=response)

    return of_model(
        "horseshoe",
        model,
        66,
        "rules",
        lambda at: [at["beta"], at["precision"] ** -0.5],
        "a horseshoe regression: 50 rows, 32 columns, four coefficients that are not zero",
    )


def sparse_dirichlet() -> Target:
    observed = np.array([0, 0, 1, 1, 3])

    def model():
        p = numpyro.sample("p", dist.Dirichlet(jnp.full(10, 0.1)))
        numpyro.sample("kind", dist.Categorical(p), obs=observed)
        numpyro.deterministic("seen", p[np.array([0, 1, 3])])

    return of_model(
        "sparse-dirichlet",
        model,
        9,
        "rules",
        lambda at: [at["seen"], 1 - jnp.sum(at["seen"])],
        "ten categories of which five draws show three; long tails towards the corners of the simplex",
    )


def network() -> Target:
    rng = np.random.default_rng(63)
    inputs = np.sort(rng.uniform(-3, 3, 60))
    response = np.sin(1.5 * inputs) + 0.3 * inputs + 0.25 * rng.normal(size=60)
    centers, new = np.linspace(-3, 3, 6), np.array([-2.5, -1.0, 0.0, 0.7, 2.0, 3.5])

    def model():
        precision_in = numpyro.sample("precision_in", dist.Gamma(10.0, 2.0))
        precision_out = numpyro.sample("precision_out", dist.Gamma(1.0, 1.0))
        precision_noise = numpyro.sample("precision_noise", dist.Gamma(2.0, 0.1))
        bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
        with numpyro.plate("units", 6):
            steepness = numpyro.sample("steepness", dist.LogNormal(0.5, precision_in**-0.5))
            weight = numpyro.sample("weight", dist.Normal(0.0, precision_out**-0.5))

        def curve(at):
            return bias + jnp.tanh(steepness * (at[:, None] - centers)) @ weight

        numpyro.deterministic("prediction", curve(new))
        with numpyro.plate("rows", 60):
            numpyro.sample("y", dist.Normal(curve(inputs), precision_noise**-0.5), obs=response)

    return of_model(
        "network-precisions",
        model,
        16,
        "held out",
        lambda at: [at["prediction"], at["precision_noise"] ** -0.5, at["precision_out"] ** -0.5],
        "a network of six tanh units at fixed centers; steepness and weights have precisions with gamma priors",
    )


# --- hierarchies ---


def cells() -> Target:
    rng = np.random.default_rng(64)
    region, age = (each.ravel() for each in np.meshgrid(np.arange(12), np.arange(5), indexing="ij"))
    logits = -0.4 + 0.5 * rng.normal(size=12)[region] + 0.7 * rng.normal(size=5)[age] + 0.6 * rng.normal(size=60)
    trials = rng.integers(10, 80, 60)
    successes = rng.binomial(trials, 1 / (1 + np.exp(-logits)))

    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.5))
        sd_region, sd_age, sd_cell = numpyro.sample("sds", dist.HalfNormal(jnp.ones(3)))
        with numpyro.plate("regions", 12):
            by_region = numpyro.sample("by_region", dist.Normal(0.0, sd_region))
        with numpyro.plate("ages", 5):
            by_age = numpyro.sample("by_age", dist.Normal(0.0, sd_age))
        with numpyro.plate("cells", 60):
            by_cell = numpyro.sample("by_cell", dist.Normal(0.0, sd_cell))
            logit = numpyro.deterministic("logit", mean + by_region[region] + by_age[age] + by_cell)
            numpyro.sample("successes", dist.Binomial(trials, logits=logit), obs=successes)

    return of_model(
        "cells",
        model,
        81,
        "rules",
        lambda at: [jax.nn.sigmoid(at["logit"][::4]), at["sds"]],
        "binomial counts of 60 cells: regions, ages and their interaction, centred, with half-normal scales",
    )


def scale_of_36() -> Target:
    rng = np.random.default_rng(65)
    exposure = rng.uniform(1.0, 5.0, 36)
    counts = rng.poisson(exposure * np.exp(0.9 + 0.25 * rng.normal(size=36)))

    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        sd = numpyro.sample("sd", dist.HalfCauchy(1.0))
        with numpyro.plate("cells", 36):
            log_rate = numpyro.sample("log_rate", dist.Normal(mean, sd))
            numpyro.sample("count", dist.Poisson(exposure * jnp.exp(log_rate)), obs=counts)

    return of_model(
        "scale-of-36",
        model,
        38,
        "rules",
        lambda at: [jnp.exp(at["log_rate"][::3]), at["sd"], jnp.exp(at["mean"] + at["sd"] ** 2 / 2)],
        "Poisson rates of 36 cells around a common mean, centred: a funnel towards a small scale",
    )


def crossed() -> Target:
    rng = np.random.default_rng(66)
    judge, item = (each.ravel() for each in np.meshgrid(np.arange(24), np.arange(16), indexing="ij"))
    rated = rng.uniform(size=judge.size) < 0.6
    judge, item = judge[rated], item[rated]
    scores = 5.0 + 0.8 * rng.normal(size=24)[judge] + 1.3 * rng.normal(size=16)[item] + rng.normal(size=judge.size)

    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        sd_judge = numpyro.sample("sd_judge", dist.HalfNormal(2.0))
        sd_item = numpyro.sample("sd_item", dist.HalfNormal(2.0))
        noise = numpyro.sample("noise", dist.Exponential(1.0))
        with numpyro.plate("judges", 24):
            by_judge = numpyro.sample("by_judge", dist.Normal(0.0, sd_judge))
        with numpyro.plate("items", 16):
            by_item = numpyro.sample("by_item", dist.Normal(0.0, sd_item))
        variances = jnp.stack([sd_judge, sd_item, noise]) ** 2
        numpyro.deterministic("shares", variances / jnp.sum(variances))
        with numpyro.plate("rows", judge.size):
            numpyro.sample("score", dist.Normal(mean + by_judge[judge] + by_item[item], noise), obs=scores)

    return of_model(
        "crossed",
        model,
        44,
        "held out",
        lambda at: [at["shares"], at["mean"] + at["by_item"]],
        "scores of 16 items by 24 judges, three in five seen: crossed effects, centred, and shares of the variance",
    )


def correlated_slopes() -> Target:
    rng = np.random.default_rng(67)
    groups, rows = 16, 8
    covariance = np.array([[1.0, -0.5, 0.2], [-0.5, 0.6, 0.0], [0.2, 0.0, 0.3]])
    effects = np.array([2.0, -1.0, 0.5]) + rng.normal(size=(groups, 3)) @ np.linalg.cholesky(covariance).T
    features = np.concatenate([np.ones((groups, rows, 1)), rng.normal(size=(groups, rows, 2))], 2)
    response = np.einsum("grk,gk->gr", features, effects) + 0.8 * rng.normal(size=(groups, rows))

    def model():
        mean = numpyro.sample("mean", dist.Normal(jnp.zeros(3), 3.0))
        scales = numpyro.sample("scales", dist.HalfNormal(jnp.full(3, 2.0)))
        factor = numpyro.sample("factor", dist.LKJCholesky(3, concentration=2.0))
        noise = numpyro.sample("noise", dist.HalfNormal(2.0))
        with numpyro.plate("groups", groups):
            z = numpyro.sample("z", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.deterministic("correlations", (factor @ factor.T)[np.array([1, 2, 2]), np.array([0, 0, 1])])
        coefficients = numpyro.deterministic("coefficients", mean + z @ (scales[:, None] * factor).T)
        fitted = jnp.einsum("grk,gk->gr", features, coefficients)
        numpyro.sample("y", dist.Normal(fitted, noise).to_event(2), obs=response)

    return of_model(
        "correlated-slopes",
        model,
        58,
        "held out",
        lambda at: [at["correlations"], at["coefficients"][::3]],
        "intercepts and two slopes of 16 groups with an LKJ prior on their correlations, non-centred",
    )


# --- series ---


def volatility() -> Target:
    rng = np.random.default_rng(68)
    path = [rng.normal(0, 0.7)]
    for _ in range(146):
        path.append(0.93 * path[-1] + 0.3 * rng.normal())
    returns = np.exp((np.array(path) - 1.0) / 2) * rng.normal(size=147)

    def model():
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        persistence = numpyro.sample("persistence", dist.Beta(20.0, 2.0))
        step = numpyro.sample("step", dist.HalfNormal(0.5))
        first = numpyro.sample("first", dist.Normal(level, step / jnp.sqrt(1 - persistence**2)))

        def follow(h, _):
            h = numpyro.sample("h", dist.Normal(level + persistence * (h - level), step))
            return h, h

        _, rest = scan(follow, first, None, length=146)
        sd = numpyro.deterministic("sd", jnp.exp(jnp.concatenate([first[None], rest]) / 2))
        numpyro.sample("return", dist.Normal(0.0, sd), obs=returns)

    return of_model(
        "volatility-147",
        model,
        150,
        "rules",
        lambda at: [at["sd"][::14], at["sd"][-1]],
        "stochastic volatility of 147 returns, centred, its states drawn in a scan",
    )


def rare_state() -> Target:
    rng = np.random.default_rng(69)
    transition = np.array([[0.93, 0.05, 0.02], [0.08, 0.9, 0.02], [0.3, 0.3, 0.4]])
    state, observed = 0, []
    for _ in range(180):
        state = rng.choice(3, p=transition[state])
        observed.append((-1.0, 1.5, 5.0)[state] + (0.6, 0.9, 1.0)[state] * rng.normal())
    values = np.array(observed)

    def model():
        with numpyro.plate("states", 3):
            rows = numpyro.sample("rows", dist.Dirichlet(jnp.ones(3)))
            sds = numpyro.sample("sds", dist.LogNormal(0.0, 0.4))
        first_and_log_gaps = dist.Normal(jnp.array([-1.0, 1.0, 1.0]), jnp.array([1.0, 0.5, 0.5])).to_event(1)
        ordered = dist.TransformedDistribution(first_and_log_gaps, dist.transforms.OrderedTransform())
        means = numpyro.sample("means", ordered)
        emissions = dist.Normal(means, sds).log_prob(values[:, None])

        def forward(alpha, emission):
            return jax.nn.logsumexp(alpha[:, None] + jnp.log(rows), axis=0) + emission, None

        alpha, _ = jax.lax.scan(forward, emissions[0] - jnp.log(3.0), emissions[1:])
        numpyro.deterministic("filtered", jax.nn.softmax(alpha))
        numpyro.factor("likelihood", jax.nn.logsumexp(alpha))

    return of_model(
        "rare-state",
        model,
        12,
        "held out",
        lambda at: [at["rows"][1:], at["means"], at["sds"]],
        "three hidden states of a Markov chain, one of them rare, by the forward algorithm; ordered means",
    )


def seasonal_smoothing() -> Target:
    rng = np.random.default_rng(70)
    days = np.arange(140)
    weekly = np.array([0.0, 1.5, 2.0, 1.0, -0.5, -2.5, -1.5])
    series = 20 + np.cumsum(0.05 + 0.25 * rng.normal(size=140)) + weekly[days % 7] + 0.7 * rng.standard_t(3, size=140)

    def model():
        smoothing = numpyro.sample("smoothing", dist.Beta(2.0, 2.0))
        trending = numpyro.sample("trending", dist.Beta(1.0, 4.0))
        level = numpyro.sample("level", dist.Normal(20.0, 5.0))
        trend = numpyro.sample("trend", dist.Normal(0.0, 0.5))
        with numpyro.plate("days", 6):
            days_but_one = numpyro.sample("weekday", dist.Normal(0.0, 3.0))
        weekday = jnp.append(days_but_one, -jnp.sum(days_but_one))
        sd = numpyro.sample("sd", dist.HalfCauchy(1.0))
        freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))

        def follow(state, now):
            level, trend = state
            day, y = now
            expected = level + trend
            above = expected + smoothing * (y - weekday[day] - expected)
            return (above, trend + trending * (above - expected)), expected + weekday[day]

        (level, trend), fitted = jax.lax.scan(follow, (level, trend), (days % 7, series))
        numpyro.sample("y", dist.StudentT(freedom, fitted, sd), obs=series)
        numpyro.deterministic("forecast", level + trend * jnp.arange(1, 8) + weekday)

    return of_model(
        "smoothing",
        model,
        12,
        "held out",
        lambda at: [at["forecast"], 1 / at["freedom"]],
        "exponential smoothing by a scan: level, trend, weekdays, and Student's errors of unknown degrees of freedom",
    )


# --- curves ---


def pharmacokinetics() -> Target:
    rng = np.random.default_rng(71)
    times = np.linspace(0.5, 12.0, 24)

    def flow(amounts, time, absorption, volume, fastest, half_rate, out, back):
        gut, blood, tissue = amounts
        eliminated = fastest * blood / (half_rate * volume + blood)
        to_tissue = out * blood - back * tissue
        return jnp.stack([-absorption * gut, absorption * gut - eliminated - to_tissue, to_tissue])

    def levels(*rates):
        first, when = jnp.array([100.0, 0.0, 0.0]), jnp.append(0.0, times)
        return odeint(flow, first, when, *rates, rtol=1e-6, atol=1e-6, mxstep=1000)[1:, 1] / rates[1]

    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(levels)(1.5, 10.0, 20.0, 2.0, 0.4, 0.3))
    jax.clear_caches()  # of what was traced in double precision, whose types would stay
    measured = (exact + 0.05) * np.exp(0.1 * rng.normal(size=times.size))

    def model():
        rates = numpyro.sample("rates", dist.LogNormal(jnp.array([0.0, 2.5, 2.7, 1.1, -1.2, -1.2]), 0.5))
        background = numpyro.sample("background", dist.HalfNormal(0.2))
        noise = numpyro.sample("noise", dist.HalfNormal(0.3))
        level = numpyro.deterministic("level", levels(*rates) + background)
        numpyro.sample("measured", dist.LogNormal(jnp.log(level), noise), obs=measured)

    return of_model(
        "pharmacokinetics",
        model,
        8,
        "rules",
        lambda at: [at["level"][::6], at["rates"][2] / at["rates"][3]],
        "an ODE: a drug in gut, blood and tissue with an elimination that saturates; 24 measurements",
    )


def latent_process() -> Target:
    rng = np.random.default_rng(72)
    at = np.linspace(0, 10, 60)
    counts = rng.poisson(np.exp(1.0 + 0.8 * np.sin(at) + 0.3 * np.cos(2.5 * at)))
    squares = np.subtract.outer(at, at) ** 2

    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        amplitude = numpyro.sample("amplitude", dist.HalfNormal(1.0))
        length = numpyro.sample("length", dist.InverseGamma(4.0, 4.0))
        with numpyro.plate("times", 60):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        covariance = jnp.exp(-0.5 * squares / length**2) + 1e-5 * jnp.eye(60)
        rate = numpyro.deterministic("rate", jnp.exp(mean + amplitude * jnp.linalg.cholesky(covariance) @ z))
        numpyro.sample("count", dist.Poisson(rate), obs=counts)

    return of_model(
        "latent-process",
        model,
        63,
        "held out",
        lambda at: [at["rate"][::5]],
        "counts at 60 times whose logarithmic rate is a Gaussian process: mean, amplitude, length, 60 coordinates",
    )


SPARSE = (horseshoe(), sparse_dirichlet(), network())
HIERARCHIES = (cells(), scale_of_36(), crossed(), correlated_slopes())
SERIES = (volatility(), rare_state(), seasonal_smoothing())
CURVES = (pharmacokinetics(), latent_process())
