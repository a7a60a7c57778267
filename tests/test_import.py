"""What `import steinkern` gives: its names, and nothing that needs an extra or compiles a program."""

import pytest

import steinkern
from tests.helpers.processes import output_of

NAMES = [
    "fit",
    "sample",
    "load",
    "combine",
    "Result",
    "Status",
    "History",
    "Diagnostics",
    "Notice",
    "SteinWarning",
    "DivergedError",
    "CheckpointError",
    "LogDensity",
    "Posterior",
    "positive",
    "greater_than",
    "less_than",
    "interval",
    "simplex",
    "ordered",
    "split",
    "merge",
    "initial",
    "svgd",
    "matrix_svgd",
    "svn",
    "gradient_free_svgd",
    "sgld",
    "psgld",
    "ensemble",
    "half_bayesian",
    "RBF",
    "IMQ",
    "Median",
    "Graphical",
    "Hessian",
    "Fisher",
    "GaussNewton",
    "EmpiricalFisher",
    "KFAC",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "GaussianNoise",
    "ksd2",
    "mmd2",
    "stein_ratio",
    "device_mesh",
    "as_blackjax",
    "release_programs",
    "plot",
    "interop",
    "kernels",
    "samplers",
    "targets",
    "kfac",
    "linalg",
    "results",
]
EXTRAS = ("arviz", "blackjax", "matplotlib", "numpyro", "openpyxl", "pooch", "pymc", "pytensor", "sklearn", "typer")
CODE = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None  # importing it fails
import jax
programs = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: programs.append(name))
import steinkern
assert steinkern.__version__
assert not [name for name in programs if "compile" in name], programs
"""


def test_the_names_are_few():
    assert len(NAMES) <= 60
    assert set(steinkern.__all__) == set(NAMES)


@pytest.mark.thorough
def test_the_names_need_no_extra_and_compile_nothing():
    output_of("-c", CODE)
