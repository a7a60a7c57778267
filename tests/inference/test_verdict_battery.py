"""Runs that are right stay quiet, and runs that are wrong do not: the cheaper cases of `benchmarks/verdicts.py`."""

import jax
import pytest

import steinkern as sk
from benchmarks.verdicts import HEALTHY, SICK, spoken

pytestmark = pytest.mark.thorough
SLOW = (
    "mixture",
    "cancer",
    "schools",
    "networks",
    "logistic",
    "NumPyro",
    "SVN",
    "half Bayesian",
)  # by what they compile


@pytest.fixture(autouse=True)
def _as_users_run_it():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


NAMED = {"breast cancer, batches of 32", "eight schools, mixture, 300 steps"}  # silent once


def quick(cases):
    return [name for name in cases if name in NAMED or not any(word in name for word in SLOW)]


@pytest.mark.parametrize("name", quick(HEALTHY))
def test_a_healthy_run_is_quiet(name):
    _, said = spoken(HEALTHY[name], 0)
    assert said == []


@pytest.mark.parametrize("name", quick(SICK))
def test_a_sick_run_is_not_silent(name):
    result, said = spoken(SICK[name], 0)
    assert said
    assert result.status is not sk.Status.CONVERGED
