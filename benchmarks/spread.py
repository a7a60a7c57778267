"""How wide do particles at rest lie? Their standard deviation over the exact one, by kernel, dimension and number.

The target is N(0, I): in an average metric every Gaussian is.
"""

from argparse import Namespace
from typing import Any

import jax.numpy as jnp
import jax.random as jr

import steinkern as sk

from .bench import Answer, Benchmark, Row

KERNELS = {"RBF": sk.RBF(), "IMQ": sk.IMQ()}


def log_density(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


def run(case: str, method: str, options: Namespace) -> Answer:
    """After 1000 steps."""
    d, n = (int(part.split("=")[1]) for part in case.split(","))
    start = jr.normal(jr.key(1), (n, d))
    result = sk.fit(
        jr.key(0), log_density, sk.svgd(KERNELS[method]), start, num_steps=1000, record_every=1000, progress=False
    )
    return Answer([Row(case, method, "spread", float(jnp.mean(result.points.std(axis=0))))])


BENCHMARKS = {
    "spread": Benchmark(
        [(f"d={d},n={n}", name) for d in (2, 10, 30) for n in (20, 50, 200, 500) for name in KERNELS], run
    )
}
