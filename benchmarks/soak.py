"""A long run of a small problem: does memory grow, do checkpoints keep up?

    python benchmarks/soak.py [--steps N]

Takes all the steps with checkpoints and a full history, prints the resident memory along the way, and exits with 1
where it has grown by more than 5 percent after the first tenth.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr

import steinkern as sk


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def log_density(x: jnp.ndarray) -> jnp.ndarray:
    return -0.5 * x[0] ** 2 - 2 * (x[1] - x[0] ** 2) ** 2


def soak(steps: int) -> list[int]:
    """Resident memory after every tenth of the run."""
    sizes: list[int] = []
    began = time.perf_counter()

    def watch(step: int, state: object, info: sk.Info) -> None:
        if step % (steps // 10) == 0:
            sizes.append(resident_bytes())
            print(f"{step:>12,} steps {time.perf_counter() - began:>8.1f} s {sizes[-1] / 2**20:>8.1f} MiB", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        result = sk.fit(
            jr.key(0), log_density, sk.svgd(), jr.normal(jr.key(1), (20, 2)), num_steps=steps, callback=watch,
            record_every=max(steps // 10_000, 1), checkpoint=directory, every=max(steps // 100, 1),
        )  # fmt: skip
    print(f"{result.status.value}: {len(result.history.step):,} lines of history")
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    sizes = soak(parser.parse_args().steps)
    growth = max(sizes) / sizes[0] - 1
    print(f"memory grew by {100 * growth:.2f} percent after the first tenth")
    sys.exit(growth > 0.05)


if __name__ == "__main__":
    main()
