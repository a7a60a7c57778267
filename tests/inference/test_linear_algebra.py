"""Every call returns for densities with linear algebra, which once hung in LAPACK."""

import pytest

from benchmarks.densities import DENSITIES
from tests.helpers.processes import output_of

CALLS = """
import sys, warnings
import jax, jax.numpy as jnp, jax.random as jr
import steinkern as sk
from benchmarks.densities import DENSITIES, DIM
jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore", sk.SteinWarning)
density, particles = DENSITIES[sys.argv[1]], 0.3 * jr.normal(jr.key(9), (20, DIM))
mixture = sk.matrix_svgd("mixture", sk.Hessian())
for seed in range(5):
    key = jr.key(seed)
    sk.sample(key, density, start=jnp.zeros(DIM), throw=False)
    sk.fit(key, density, start=jnp.zeros(DIM), num_steps=20, throw=False)
    sk.fit(key, density, mixture, particles, num_steps=20, throw=False)
    sk.fit(key, density, sk.svn(sk.Hessian()), particles, num_steps=20, throw=False)
    print("returned")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", DENSITIES)
def test_five_calls_of_every_kind_return(name):
    # The helper's limit ends a process that hangs; the calls take half a minute.
    assert output_of("-c", CALLS, name).splitlines() == ["returned"] * 5
