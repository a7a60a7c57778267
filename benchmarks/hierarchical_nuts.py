"""NumPyro's NUTS on the eight schools of docs/tutorials/hierarchical.md: the numbers that the page compares with.

The model is the page's own: its first block of Python is executed.

    python benchmarks/hierarchical_nuts.py
"""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

import steinkern as sk

PAGE = Path(__file__).parent.parent / "docs" / "tutorials" / "hierarchical.md"
SITES = ("centre", "spread", "effect")


def main() -> None:
    """Print the moments by NUTS, and how much narrower plain SVGD is."""
    names: dict[str, Any] = {}
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert block is not None
    exec(compile(block[1], PAGE.name, "exec"), names)
    chain = MCMC(NUTS(names["schools"]), num_warmup=500, num_samples=1000, progress_bar=False)
    chain.run(jax.random.key(0), names["errors"], names["effects"])
    exact = {name: np.asarray(chain.get_samples()[name]) for name in SITES}
    start = names["target"].prior(jax.random.key(1), 100)
    plain = sk.fit(jax.random.key(0), names["target"], sk.svgd(), start, num_steps=500)
    sites = names["target"].sites(plain.particles)
    print(f"{'site':<10} {'NUTS':>14} {'svgd() sd, relative':>20}")
    for name in SITES:
        means, sds = (np.atleast_1d(function(exact[name], axis=0)) for function in (np.mean, np.std))
        ratios = np.atleast_1d(np.std(np.asarray(sites[name]), axis=0)) / sds
        for place, (mean, sd, ratio) in enumerate(zip(means, sds, ratios, strict=True)):
            label = f"{name}[{place}]" if len(means) > 1 else name
            print(f"{label:<10} {mean:>6.2f} ± {sd:<5.2f} {ratio - 1:>20.0%}")


if __name__ == "__main__":
    main()
