"""Whole first and second calls by the wall: `sample` beside NUTS, and `fit` beside its steps alone.

The densities are those of `densities`. NUTS is NumPyro's, one chain of 1000 + 1000 iterations; `sample-threads` leaves
BLAS its threads, which `sample` limits to one while it calls LAPACK for small matrices.

A fit of n steps is called twice, and so is one of k n steps. Their second calls, which compile nothing, take T(n) and
T(k n) seconds, the best of a few where they are short. What `fit` does beside its steps is in both, so n steps alone
take (T(k n) - T(n)) / (k - 1). `whole-gpu` has the fits that are too large for a CPU.

Particles are of a Gaussian with standard deviations 1 to 2 and quartic tails. Networks have 10 particles, batches of
128 of random data, and no TF32; their mixtures measure the curvature by KFAC every 5 steps and factorise it every 10.
"""

from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .bench import BESIDE, Answer, Benchmark, Row, best_of, by_metric, seconds_of
from .densities import DENSITIES, DIM, MODELS


class Fit(NamedTuple):
    """The sampler, the particles or layers of a case, its steps n, and the factor k of the longer fit."""

    sampler: str
    size: str
    num_steps: int
    factor: int


FITS = {
    f"{fit.sampler} {fit.size}": fit
    for fit in (
        Fit("vanilla", "50x2", 300, 10),
        Fit("average", "50x2", 300, 10),
        Fit("mixture", "50x2", 300, 5),
        Fit("vanilla", "100x10", 300, 10),
        Fit("vanilla", "2000x50", 50, 5),
        Fit("vanilla", "65536x50", 100, 4),
        Fit("vanilla", "1048576x50", 3, 3),
        Fit("ensemble", "64-32-10", 200, 5),
        Fit("mixture", "64-32-10", 100, 3),
        Fit("ensemble", "784-400-400-10", 200, 10),
        Fit("mixture", "784-400-400-10", 200, 3),
        Fit("ensemble", "784-1000-200-10", 200, 10),
        Fit("mixture", "784-1000-200-10", 200, 3),
    )
}
PARTICLES, BATCH, EXAMPLES = 10, 128, 640  # of networks


def sample_call(case: str) -> Callable[[Any], Any]:
    """A call of `sample`, a function of the key."""
    import steinkern as sk

    if case in MODELS:
        target = sk.interop.numpyro.from_model(MODELS[case])
        return lambda key: sk.sample(key, target).points
    start = jnp.zeros(DIM)
    return lambda key: sk.sample(key, DENSITIES[case], start).points


def nuts_call(case: str) -> Callable[[Any], Any]:
    """A run of NumPyro's NUTS, a function of the key."""
    from numpyro.infer import MCMC, NUTS

    def run(key: Any) -> Any:
        kernel = NUTS(MODELS[case]) if case in MODELS else NUTS(potential_fn=lambda x: -DENSITIES[case](x))
        chain = MCMC(kernel, num_warmup=1000, num_samples=1000, progress_bar=False)
        chain.run(key, init_params=None if case in MODELS else jnp.zeros(DIM))
        return chain.get_samples()

    return run


def fit_call(case: Fit) -> Callable[[int], Any]:
    """A fit of so many steps."""
    return network_fit(case) if "-" in case.size else particle_fit(case)


def particle_fit(case: Fit) -> Callable[[int], Any]:
    """On a plain function of a vector."""
    import steinkern as sk

    n, d = map(int, case.size.split("x"))
    particles, scales = jr.normal(jr.key(0), (n, d)), 1 + jnp.arange(d) / d

    def log_density(x: Any) -> Any:
        return -0.5 * jnp.sum((x / scales) ** 2) - 0.01 * jnp.sum(x**4)

    sampler = sk.svgd() if case.sampler == "vanilla" else sk.matrix_svgd(case.sampler, sk.Hessian())
    return lambda steps: sk.fit(jr.key(1), log_density, sampler, particles, num_steps=steps, progress=False).points


def network_fit(case: Fit) -> Callable[[int], Any]:
    """On the weights of a network for ten classes, with a normal prior."""
    import equinox as eqx

    import steinkern as sk

    jax.config.update("jax_default_matmul_precision", "highest")
    sizes = tuple(map(int, case.size.split("-")))

    def draw(key: Any) -> Any:
        keys = jr.split(key, len(sizes) - 1)
        return [eqx.nn.Linear(*ends, key=k) for *ends, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]

    layers = eqx.filter_vmap(draw)(jr.split(jr.key(0), PARTICLES))
    particles, static = eqx.partition(layers, eqx.is_inexact_array)
    random = np.random.default_rng(0)
    data = jnp.asarray(random.normal(size=(EXAMPLES, sizes[0])), jnp.float32), random.integers(0, 10, EXAMPLES)

    def logits(parameters: Any, example: Any) -> Any:
        *hidden, last = eqx.combine(parameters, static)
        x = example[0]
        for layer in hidden:
            x = jnp.tanh(layer(x))
        return last(x)

    posterior = sk.Posterior(
        lambda parameters: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters)),
        lambda parameters, example: sk.Categorical().log_prob(logits(parameters, example), example[1]),
        num_data=EXAMPLES,
    )
    if case.sampler == "ensemble":
        sampler: Any = sk.ensemble(1e-3)
    else:
        sampler = sk.matrix_svgd(
            "mixture", sk.KFAC(logits, sk.Categorical()), None, 1e-3, damping=0.1, decay=0.95, refresh_every=10,
            measure_every=5, temperature=sk.Median(), weighting="no_determinant",
        )  # fmt: skip
    return lambda steps: (
        sk.fit(jr.key(1), posterior, sampler, particles, data, num_steps=steps, batch_size=BATCH, progress=False).points
    )


def run(case: str, method: str, options: Namespace) -> Answer:
    """First and second calls, and of a fit the steps alone."""
    jax.block_until_ready(jnp.zeros(1) + 1)  # the device is awake
    if method == "fit":
        fit, steps, factor = fit_call(FITS[case]), FITS[case].num_steps, FITS[case].factor
        first = seconds_of(lambda: fit(steps))
        seconds_of(lambda: fit(factor * steps))  # compiles, where a number of steps has a program of its own
        second, longer = best_of(lambda: fit(steps), lambda: fit(factor * steps), seconds=4.0)
        numbers = {"first_seconds": first, "second_seconds": second, "longer_seconds": longer}
    else:
        if method == "sample-threads":
            programs: Any = import_module("steinkern.core.programs")
            programs.one_blas_thread = nullcontext
        keys, call = iter(jr.split(jr.key(0), 16)), (nuts_call if method == "nuts" else sample_call)(case)
        first = seconds_of(lambda: call(next(keys)))
        numbers = {"first_seconds": first, "second_seconds": best_of(lambda: call(next(keys)))[0]}
    return Answer([Row(case, method, metric, seconds) for metric, seconds in numbers.items()])


def compared(rows: list[Row]) -> list[Row]:
    """What the n steps of a fit take, and calls over them, over those of NUTS and over those of the other version."""
    numbers, made = by_metric(rows), []
    for (case, method), number in numbers.items():
        if "longer_seconds" in number:
            steps = (number["longer_seconds"] - number["second_seconds"]) / (FITS[case].factor - 1)
            made.append(Row(case, method, "steps_seconds", steps))
            made.append(Row(case, method, "over_steps", number["second_seconds"] / steps))
        other = numbers.get((case, "nuts" if method.startswith("sample") else f"{method}{BESIDE}"), {})
        for call in ("first", "second"):
            if (metric := f"{call}_seconds") in other:
                made.append(Row(case, method, f"{call}_over", number[metric] / other[metric]))
    return made


def benchmark(pairs: list[tuple[str, str]]) -> Benchmark:
    """Of these calls."""
    return Benchmark(
        pairs,
        run,
        compared,
        ("first_seconds", "second_seconds", "steps_seconds", "over_steps", "first_over", "second_over"),
        foreign=("nuts",),
        settings={
            "seconds": "second calls are the best of up to five; of several processes the best",
            "over": "of `sample` over the calls of NUTS, of `fit` over those of the other version",
        },
    )


CALLS = [(case, method) for case in (*DENSITIES, *MODELS) for method in ("sample", "nuts", "sample-threads")]
LARGE = ("65536x50", "1048576x50", "784-400-400-10", "784-1000-200-10")
BENCHMARKS = {
    "whole": benchmark(CALLS + [(case, "fit") for case, fit in FITS.items() if fit.size not in LARGE]),
    "whole-gpu": benchmark([(case, "fit") for case, fit in FITS.items() if fit.size in LARGE]),
}
