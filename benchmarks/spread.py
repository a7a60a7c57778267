"""How wide do particles at rest lie? Their standard deviation over the exact one, by kernel, dimension and number.

The target is N(0, I): in an average metric every Gaussian is. `python benchmarks/spread.py --json PATH` takes minutes.
"""

import argparse
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp

import steinkern as sk
from steinkern.core.files import environment
from steinkern.experiments.tables import Row, write_results

KERNELS = {"RBF": sk.RBF(), "IMQ": sk.IMQ()}


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def spread(kernel, n: int, d: int) -> float:
    start = jax.random.normal(jax.random.key(1), (n, d))
    result = sk.fit(jax.random.key(0), log_density, sk.svgd(kernel), start, num_steps=1000, record_every=1000)
    return float(jnp.mean(result.particles.std(axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    warnings.simplefilter("ignore", sk.SteinWarning)  # small spreads are what is measured
    rows = []
    for d in (2, 10, 30):
        for n in (20, 50, 200, 500):
            for name, kernel in KERNELS.items():
                rows.append(Row(f"d={d},n={n}", name, "spread", spread(kernel, n, d), None, 1))
                print(rows[-1].case, name, f"{rows[-1].mean:.2f}")
    if path:
        write_results(path, "spread", environment(), rows)


if __name__ == "__main__":
    main()
