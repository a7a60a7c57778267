"""False alarms and silent failures of the checks: thirty healthy runs and thirty sick ones, and everyday posteriors.

`verdicts`: a healthy run is one whose means are within a quarter of a standard deviation of the exact ones, or one that
claims no draws of the target; a sick one is shifted, too wide, too narrow, has not moved, or climbs a density turned
upside down. A healthy run is as expected where it warns of nothing, a sick one where it warns and is not "converged".

`verdicts-everyday`: twenty everyday posteriors, each fitted by four samplers from N(0, I), with few and with many
particles and steps. A run is *wrong* where a mean is more than one reference standard deviation off, or a standard
deviation by more than a factor of two; *right* where all means are within 0.35 and all standard deviations within 0.7
to 1.4. Those between count as neither. A wrong run that warns of nothing, and has not diverged, is silent; a right run
whose check does not pass is a false alarm.
"""

import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import steinkern as sk
from studies.toy.targets import TARGETS as TOYS

from .bench import Answer, Benchmark, Row
from .posteriors.run import GOOD, Judgement
from .posteriors.target import read_references
from .posteriors.targets import TARGETS

Case = Callable[[int], sk.Result]


def draws(seed: int, n: int, d: int) -> jax.Array:
    return jr.normal(jr.key(1000 + seed), (n, d))


def fit(seed: int, target: Any, sampler: Any, particles: Any, num_steps: int = 500, **options: Any) -> sk.Result:
    return sk.fit(jr.key(seed), target, sampler, particles, num_steps=num_steps, progress=False, **options)


def standard(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


def falling(rate: float, steps: int) -> Any:
    return optax.rmsprop(optax.cosine_decay_schedule(rate, steps))


def correlated(d: int, correlation: float, scales: Any = 1.0) -> tuple[Callable[[Any], Any], np.ndarray]:
    """A Gaussian with one correlation between all coordinates, and the root of its covariance."""
    covariance = (1 - correlation) * np.eye(d) + correlation * np.ones((d, d))
    covariance = covariance * np.outer(scales * np.ones(d), scales * np.ones(d))
    precision = jnp.asarray(np.linalg.inv(covariance), jnp.float32)
    return lambda x: -0.5 * x @ precision @ x, np.linalg.cholesky(covariance)


def banana(x: Any) -> Any:
    return -(x[0] ** 2) / 8 - (x[1] - x[0] ** 2 / 4) ** 2 / 0.18


def student(x: Any) -> Any:
    return -3.0 * jnp.sum(jnp.log1p(x**2 / 5))


def two_modes(x: Any) -> Any:
    return jnp.logaddexp(standard(x - 2), standard(x + 2))


def logit(parameters: Any, example: Any) -> Any:
    return example[0] @ parameters["weights"] + parameters["intercept"]


LOGISTIC = (
    lambda parameters: -0.5 * (jnp.sum(parameters["weights"] ** 2) + parameters["intercept"] ** 2),
    lambda parameters, example: sk.Bernoulli().log_prob(logit(parameters, example)[None], example[1]),
)


def logistic_data(seed: int, rows: int = 2000) -> tuple[jax.Array, jax.Array]:
    features = jr.normal(jr.key(seed + 2), (rows, 3))
    chances = jax.nn.sigmoid(features @ jnp.array([1.0, -2.0, 0.5]) + 0.3)
    return features, jr.bernoulli(jr.key(seed + 4), chances).astype(jnp.float32)


def cancer() -> tuple[jax.Array, jax.Array]:
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    return jnp.asarray((features - features.mean(0)) / features.std(0), jnp.float32), jnp.asarray(labels, jnp.float32)


def regression(seed: int, data: Any, batch_size: int | None, optimizer: Any, num_steps: int = 1000) -> sk.Result:
    """The README's recipe for minibatches, on any data with 0/1 labels."""
    rows, d = data[0].shape
    start = sk.initial.gaussian(
        jr.key(seed + 3), {"weights": jnp.zeros(d), "intercept": jnp.zeros(())}, num_particles=50
    )
    sampler = sk.matrix_svgd(
        "average", sk.Fisher(logit, sk.Bernoulli()), sk.IMQ(), optimizer, decay=0.95, refresh_every=5
    )
    posterior = sk.Posterior(*LOGISTIC, num_data=rows)
    return fit(seed, posterior, sampler, start, num_steps, data=data, batch_size=batch_size)


def unscaled(seed: int, **options: Any) -> sk.Result:
    """A linear regression with one regressor of mean 100 and standard deviation 30."""
    generator = np.random.default_rng(seed)
    x, z = generator.normal(size=300), generator.normal(100, 30, 300)
    y = jnp.asarray(2 + 1.5 * x - 0.01 * z + 0.5 * generator.normal(size=300), jnp.float32)
    design = jnp.asarray(np.column_stack([np.ones(300), x, z]), jnp.float32)

    def log_density(p: Any) -> Any:
        residuals = y - design @ p[:3]
        return -0.5 * jnp.sum(residuals**2) * jnp.exp(-2 * p[3]) - 300 * p[3] - 0.005 * jnp.sum(p**2)

    return fit(seed, log_density, sk.svgd(), 0.1 * draws(seed, 50, 4), **options)


def schools(prior: Any) -> Any:
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)

    def model() -> None:
        centre = numpyro.sample("centre", dist.Normal(0, 5))
        spread = numpyro.sample("spread", prior)
        with numpyro.plate("schools", 8):
            offset = numpyro.sample("offset", dist.Normal(0, 1))
            numpyro.sample("observed", dist.Normal(centre + spread * offset, errors), obs=effects)

    return sk.interop.numpyro.from_model(model)


def line(seed: int, optimizer: Any, batch: int = 50, num_steps: int = 500) -> sk.Result:
    """The README's NumPyro model, with minibatches of its own."""

    def model(x: Any, y: Any) -> None:
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
            numpyro.sample("y", dist.Normal(slope * x[rows], noise), obs=y[rows])

    x = jr.normal(jr.key(seed + 9), (500,))
    target = sk.interop.numpyro.from_model(model, x, 1.5 * x + 0.3 * jr.normal(jr.key(seed + 10), (500,)))
    return fit(seed, target, sk.svgd(None, optimizer), target.prior(jr.key(seed + 1), 50), num_steps)


def gamma(seed: int) -> sk.Result:
    target = sk.LogDensity(lambda p: 2 * jnp.log(p["rate"]) - p["rate"], support={"rate": sk.positive})
    return fit(seed, target, sk.svgd(), {"rate": jnp.exp(draws(seed, 100, 1)[:, 0])})


def toy(seed: int, name: str) -> sk.Result:
    target = TOYS[name]
    sampler = sk.matrix_svgd("mixture", sk.Hessian(), None, 0.3)
    return fit(seed, target.log_density, sampler, draws(seed, 50, 2))


def last_layer(seed: int) -> sk.Result:
    """Ten particles of a linear layer above shared features that are trained with them."""
    features, labels = logistic_data(seed, 300)
    parameters = {"network": eqx.nn.Linear(3, 2, key=jr.key(seed)), "output": 0.1 * draws(seed, 40, 2)}
    particles, shared = sk.split(parameters, "output")

    def log_likelihood(parameters: Any, example: Any) -> Any:
        value = parameters["output"] @ jnp.tanh(parameters["network"](example[0]))
        return sk.Bernoulli().log_prob(value[None], example[1])

    posterior = sk.Posterior(lambda p: standard(p["output"]), log_likelihood, num_data=300, shared=shared)
    sampler = sk.half_bayesian(sk.svgd(sk.IMQ()), optax.adam(1e-2))
    return fit(seed, posterior, sampler, particles, data=(features, labels))


def placed(seed: int, n: int, scales: Any, shift: Any = 0.0, correlation: float = 0.0) -> sk.Result:
    """Draws of a Gaussian moved and stretched in its own coordinates, and one step too short to matter."""
    d = len(scales)
    target, root = correlated(d, correlation)
    cloud = (np.asarray(draws(seed, n, d)) * np.asarray(scales) + shift * np.eye(d)[0]) @ root.T
    return fit(seed, target, sk.svgd(None, optax.sgd(1e-4)), jnp.asarray(cloud, jnp.float32), 1)


def blob(seed: int) -> sk.Result:
    """An isotropic cloud on a Gaussian with correlation 0.95: each spread is 1 and so is the Stein ratio."""
    target, _ = correlated(2, 0.95)
    return fit(seed, target, sk.svgd(None, optax.sgd(1e-4)), (1 - 0.95**2) ** 0.5 * draws(seed, 100, 2), 1)


def network(seed: int) -> sk.Result:
    """The README's ten networks, by KFAC."""
    x = jr.uniform(jr.key(4), (200, 1), minval=-2.0, maxval=2.0)
    y = jnp.sin(2 * x) + 0.1 * jr.normal(jr.key(5), (200, 1))
    networks = eqx.filter_vmap(lambda key: eqx.nn.MLP(1, 1, 50, 1, key=key))(jr.split(jr.key(seed + 6), 10))
    weights, rest = eqx.partition(networks, eqx.is_inexact_array)

    def output(parameters: Any, example: Any) -> Any:
        return jnp.append(eqx.combine(parameters["weights"], rest)(example[0]), parameters["log_variance"])

    posterior = sk.Posterior(
        lambda parameters: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters)),
        lambda parameters, example: sk.GaussianNoise().log_prob(output(parameters, example), example[1]),
        num_data=200,
    )
    sampler = sk.matrix_svgd(
        "mixture", sk.KFAC(output, sk.GaussianNoise()), per_block=True, temperature=sk.Median(),
        weighting="no_determinant", decay=0.95, refresh_every=10, damping=1e-2,
    )  # fmt: skip
    start = {"weights": weights, "log_variance": 0.1 * jr.normal(jr.key(7), (10,))}
    return fit(seed, posterior, sampler, start, 300, data=(x, y), batch_size=50)


AVERAGE, MIXTURE = (sk.matrix_svgd(kind, sk.Hessian()) for kind in ("average", "mixture"))
MIXTURE_IMQ = sk.matrix_svgd("mixture", sk.Hessian(), sk.IMQ(), optax.sgd(optax.cosine_decay_schedule(1.0, 300)))
SCALES = np.array([1e-2, 1.0, 1e2], np.float32)
STIFF = correlated(3, 0.5, SCALES)[0]

HEALTHY: dict[str, Case] = {
    "N(0, I), d=2, n=50": lambda k: fit(k, standard, sk.svgd(), draws(k, 50, 2)),
    "N(0, I), d=2, n=20, from afar": lambda k: fit(k, standard, sk.svgd(None, 1.0), 10 + 3 * draws(k, 20, 2)),
    "N(0, I), d=2, n=10": lambda k: fit(k, standard, sk.svgd(), draws(k, 10, 2)),
    "N(0, I), d=1, n=5": lambda k: fit(k, standard, sk.svgd(), draws(k, 5, 1)),
    "N(0, I), d=5, n=50, IMQ": lambda k: fit(k, standard, sk.svgd(sk.IMQ()), draws(k, 50, 5)),
    "N(0, I), d=10, n=100, IMQ": lambda k: fit(k, standard, sk.svgd(sk.IMQ()), draws(k, 100, 10)),
    "N(0, I), d=30, n=50, IMQ": lambda k: fit(k, standard, sk.svgd(sk.IMQ(), 1.0), draws(k, 50, 30)),
    "N(0, I), d=3, SVN": lambda k: fit(k, standard, sk.svn(sk.Hessian()), draws(k, 50, 3)),
    "correlation 0.9, average": lambda k: fit(k, correlated(3, 0.9)[0], AVERAGE, draws(k, 50, 3)),
    "correlation 0.99, mixture": lambda k: fit(k, correlated(2, 0.99)[0], MIXTURE, draws(k, 50, 2)),
    "scales 0.01 to 100, average": lambda k: fit(
        k, STIFF, sk.matrix_svgd("average", sk.Hessian(), None, optax.sgd(0.5)), 2 * draws(k, 50, 3) * SCALES, 2000
    ),
    "banana, mixture": lambda k: fit(
        k, banana, sk.matrix_svgd("mixture", sk.Hessian(), None, 0.15), draws(k, 50, 2), 700
    ),
    "sine, mixture": lambda k: toy(k, "sine"),
    "double banana, mixture": lambda k: toy(k, "double_banana"),
    "star, mixture": lambda k: toy(k, "star"),
    "Student's t, d=3": lambda k: fit(k, student, sk.svgd(sk.IMQ()), draws(k, 50, 3)),
    "two modes, both held": lambda k: fit(k, two_modes, sk.svgd(), 2 * draws(k, 60, 1), 1000),
    "Gamma(3, 1) in its logarithm": gamma,
    "logistic, batches of 500": lambda k: regression(k, logistic_data(k), 500, falling(0.05, 1000)),
    "logistic, all rows": lambda k: regression(k, logistic_data(k, 300), None, 0.3, 500),
    "breast cancer, all rows": lambda k: regression(k, cancer(), None, 1.0, 300),
    "NumPyro, batches of 100": lambda k: line(k, falling(0.05, 1000), 100, 1000),
    "eight schools, IMQ": lambda k: fit(
        k, t := schools(dist.HalfNormal(5)), sk.svgd(sk.IMQ()), t.prior(jr.key(k), 100)
    ),
    "SGLD": lambda k: fit(k, standard, sk.sgld(0.05), draws(k, 50, 3)),
    "pSGLD": lambda k: fit(k, standard, sk.psgld(0.02), draws(k, 50, 3)),
    "tempered, ends at 1": lambda k: fit(
        k, standard, sk.svgd(), 3 + draws(k, 50, 2), tempering=lambda t: jnp.minimum(1.0, (t + 1) / 250)
    ),
    "tolerance reached": lambda k: fit(k, standard, sk.svgd(), draws(k, 50, 2), 2000, tolerance=0.02),
    "a last layer, half Bayesian": last_layer,
    "collapse, d=100, n=10": lambda k: fit(k, standard, sk.svgd(None, 1.0), draws(k, 10, 100), 600),
    "ten networks of 151 weights": network,
    "ensemble: claims no draws": lambda k: fit(k, standard, sk.ensemble(), draws(k, 20, 2), 300),
    "gradient-free: not checked": lambda k: fit(k, standard, sk.gradient_free_svgd(standard), draws(k, 50, 2), 300),
}
"""Runs that should pass, or that claim nothing to be checked."""

SICK: dict[str, Case] = {
    "shifted by 1 sd, d=3, n=100": lambda k: placed(k, 100, [1.0] * 3, 1.0),
    "shifted by 2 sd, d=1, n=30": lambda k: placed(k, 30, [1.0], 2.0),
    "shifted by 2 sd, d=10, n=50": lambda k: placed(k, 50, [1.0] * 10, 2.0),
    "shifted by 5 sd, d=100, n=20": lambda k: placed(k, 20, [1.0] * 100, 5.0),
    "shifted by 2 sd, correlation 0.95": lambda k: placed(k, 50, [1.0] * 3, 2.0, 0.95),
    "20 sd off, sds 1, 1.4 and 0.2": lambda k: placed(k, 200, [1.0, 1.4, 0.2], 20.0),
    "too wide here, too narrow there": lambda k: placed(k, 50, [2.5, 0.4]),
    "the same, correlation 0.95": lambda k: placed(k, 100, [2.5, 0.4, 1.0], 0.0, 0.95),
    "twice too wide, n=30": lambda k: placed(k, 30, [2.0] * 3),
    "half as wide, n=30": lambda k: placed(k, 30, [0.5] * 5),
    "a round cloud on a long Gaussian": blob,
    "unscaled regressor, tolerance": lambda k: unscaled(k, num_steps=1000, tolerance=1e-3),
    "unscaled regressor, 300 steps": lambda k: unscaled(k, num_steps=300),
    "unscaled regressor, 1,000 steps": lambda k: unscaled(k, num_steps=1000),
    "breast cancer, batches of 32": lambda k: regression(k, cancer(), 32, falling(0.05, 1000)),
    "breast cancer, batches of 100": lambda k: regression(k, cancer(), 100, falling(0.05, 1000)),
    "logistic, step size that stays": lambda k: regression(k, logistic_data(k), 20, optax.sgd(0.5)),
    "NumPyro, step size that stays": lambda k: line(k, optax.rmsprop(0.3)),
    "eight schools, mixture, 300 steps": lambda k: fit(
        k, t := schools(dist.HalfCauchy(5)), MIXTURE_IMQ, t.prior(jr.key(k), 100), 300
    ),
    "sign slip, SVGD": lambda k: fit(k, lambda x: -standard(x), sk.svgd(), draws(k, 50, 2), 100),
    "sign slip, SGLD": lambda k: fit(k, lambda x: -standard(x), sk.sgld(1e-3), draws(k, 50, 2), 50),
    "sign slip, ensemble": lambda k: fit(k, lambda x: -standard(x), sk.ensemble(), draws(k, 20, 2), 50),
    "collapse, d=10, n=50": lambda k: fit(k, standard, sk.svgd(), draws(k, 50, 10), 1000),
    "ten steps from afar": lambda k: fit(k, standard, sk.svgd(), 50 + draws(k, 20, 2), 10),
    "SGLD with too large a step": lambda k: fit(k, standard, sk.sgld(1.8), draws(k, 50, 3)),
    "SGLD that has hardly begun": lambda k: fit(k, standard, sk.sgld(1e-4), 5 + 0.1 * draws(k, 50, 3), 100),
    "a step size of 0": lambda k: fit(k, standard, sk.svgd(None, optax.sgd(0.0)), draws(k, 50, 2), 200),
    "a learning rate of 1e-30": lambda k: fit(k, standard, sk.svgd(None, 1e-30), draws(k, 50, 2), 200),
}
"""Runs that should fail, or be said not to have moved."""


def spoken(case: Case, seed: int) -> tuple[sk.Result, list[str]]:
    """A run, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = case(seed)
    return result, [str(entry.message) for entry in caught if isinstance(entry.message, sk.SteinWarning)]


def run(case: str, method: str, options: Namespace) -> Answer:
    """One run of the battery, and what it warned of."""
    result, texts = spoken({"healthy": HEALTHY, "sick": SICK}[method][case], options.seeds)
    expected = not texts if method == "healthy" else bool(texts) and result.status is not sk.Status.CONVERGED
    numbers = {"warnings": len(texts), "as expected": expected}
    return Answer([Row(case, method, metric, float(value)) for metric, value in numbers.items()], texts)


WRONG = (1.0, 0.5, 2.0)
SIZES = ((30, 50), (50, 300), (100, 1000))
"""Particles and steps."""
SAMPLERS = {
    "svgd": lambda: sk.svgd(),
    "svgd, IMQ": lambda: sk.svgd(sk.IMQ()),
    "average, Hessian": lambda: sk.matrix_svgd("average", sk.Hessian(), sk.IMQ()),
    "mixture, Hessian": lambda: sk.matrix_svgd("mixture", sk.Hessian()),
}
EVERYDAY = (
    "hidden-markov", "counties", "stochastic-volatility", "schools-centred", "schools-noncentred", "funnel",
    "last-layer", "logistic-raw", "robust", "poisson", "mixture", "negative-binomial", "weibull", "garch", "ar2",
    "linear-quadratic", "logistic-growth", "gamma", "banana", "four-modes",
)  # fmt: skip
"""Those whose fits take seconds."""


def run_everyday(case: str, method: str, options: Namespace) -> Answer:
    """All sizes and seeds of one sampler on one posterior; silent failures and false alarms as notes."""
    target, reference, notes = TARGETS[case], read_references()[case], []
    counts = dict.fromkeys(("fits", "wrong", "silent", "right", "false alarms"), 0)
    for particles, steps in SIZES:
        for seed in range(options.seeds or 1):
            start = jr.normal(jr.key(100 + seed), (particles, target.dim))
            try:
                result = sk.fit(
                    jr.key(seed), target.log_density, SAMPLERS[method](), start, num_steps=steps, progress=False,
                    throw=False,
                )  # fmt: skip
            except ValueError:  # first particles where the density is not finite are refused
                continue
            points = np.asarray(result.points, np.float64)
            judged = Judgement.of(points.mean(0), points.std(0), reference)
            wrong, right = not judged.within(WRONG), judged.within(GOOD)
            silent = wrong and not result.warnings and result.status is not sk.Status.DIVERGED
            false_alarm = right and (bool(result.warnings) or not len(result.diagnostics.shift))
            for name, value in zip(counts, (True, wrong, silent, right, false_alarm), strict=True):
                counts[name] += value
            if silent or false_alarm:
                word = "silent" if silent else "false alarm"
                notes.append(f"{word}: {particles} particles, {steps} steps, seed {seed}: {judged}")
    return Answer([Row(case, method, metric, float(value)) for metric, value in counts.items()], notes)


def totals(rows: list[Row]) -> list[Row]:
    """Over all posteriors, by sampler and together."""
    sums: dict[tuple[str, str], float] = {}
    for row in rows:
        for method in (row.method, "all"):
            sums[method, row.metric] = sums.get((method, row.metric), 0.0) + row.mean
    return [Row("all", method, metric, value) for (method, metric), value in sums.items()]


BENCHMARKS = {
    "verdicts": Benchmark(
        [(case, method) for method, cases in (("healthy", HEALTHY), ("sick", SICK)) for case in cases], run
    ),
    "verdicts-everyday": Benchmark(
        [(case, method) for case in EVERYDAY for method in reversed(SAMPLERS)],
        run_everyday,
        totals,
        settings={"wrong": WRONG, "good": GOOD, "sizes": SIZES},
        precision="float64",
    ),
}
