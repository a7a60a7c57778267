"""Other libraries in `cpu`: each from a problem to steps ready to be timed, with its own median bandwidth."""

import importlib.util
import os
import sys
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from contenders import LEARNING_RATE, Prepare, Problem, adagrad, scanned


def blackjax(problem: Problem) -> Prepare:
    """BlackJAX's SVGD."""
    import blackjax as bj

    algorithm = bj.svgd(jax.grad(problem.log_density), adagrad())
    start = algorithm.init(problem.points, {"length_scale": jnp.ones(())})
    return scanned(lambda state: (algorithm.step(state), None), start)


def numpyro(problem: Problem, mode: str = "norm") -> Prepare:
    """NumPyro's SVGD; its own initial particles."""
    import numpyro as npy
    from numpyro.contrib.einstein import SVGD, RBFKernel

    n, d = problem.points.shape
    flat = npy.distributions.Normal(jnp.zeros(d), 1.0).to_event(1).mask(False)

    def model() -> None:
        npy.factor("log_density", problem.log_density(npy.sample("x", flat)))

    algorithm = SVGD(model, npy.optim.Adagrad(LEARNING_RATE), RBFKernel(mode=mode), num_stein_particles=n)
    return scanned(algorithm.update, algorithm.init(jr.key(0)))


def numpyro_matrix(problem: Problem) -> Prepare:
    """NumPyro's generic way for matrix-valued kernels."""
    return numpyro(problem, "matrix")


def msvgd(problem: Problem) -> Prepare:
    """The loop of msvgd, which is told never to have converged."""
    from msvgd.msvgd import MSVGD

    solver = MSVGD(problem.log_density)
    rule = {"learning_rate": LEARNING_RATE, "initial_accumulator_value": 0.0}

    def prepare(steps: int) -> Any:
        return lambda: solver.solve(
            problem.points, optimizer=optax.adagrad, optimizer_kwargs=rule, max_iter=steps, atol=-1.0, rtol=0.0,
            monitor_convergence=-1,
        )  # fmt: skip

    return prepare


def pymc(problem: Problem) -> Prepare:
    """PyMC's SVGD, a compiled step at a time, in its own precision; its own initial particles."""
    import pymc as pm
    import pytensor.tensor as pt

    n, d = problem.points.shape
    assert problem.symbolic is not None
    with pm.Model() as model:
        x = pm.Flat("x", shape=d, initval=np.zeros(d))
        pm.Potential("log_density", problem.symbolic(pt, x))
        objective = pm.SVGD(n_particles=n, model=model, random_seed=0).objective
        step = objective.step_function(obj_optimizer=pm.adagrad(learning_rate=LEARNING_RATE))

    def prepare(steps: int) -> Any:
        def run() -> None:
            for _ in range(steps):
                step()

        return run

    return prepare


def simplesvgd(problem: Problem) -> Prepare:
    """simpleSVGD, in NumPy; gradient steps, since it has no Adagrad without Torch."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    if (
        "torch" not in sys.modules and importlib.util.find_spec("torch") is None
    ):  # it imports Torch for what is not used here
        sys.modules["torch"] = MagicMock()
    import simpleSVGD

    start, scores = np.asarray(problem.points), problem.scores
    assert scores is not None
    # Steps so small that nothing explodes: how long a step takes does not depend on where it leads.
    return lambda steps: lambda: simpleSVGD.update(start, lambda points: -scores(points), steps, stepsize=1e-6)


PEERS = {
    "blackjax": ("blackjax", blackjax),
    "numpyro": ("numpyro", numpyro),
    "msvgd": ("msvgd", msvgd),
    "pymc": ("pymc", pymc),
    "simplesvgd": ("simpleSVGD", simplesvgd),
}
"""By method: the module that has to be there, and who makes its steps."""
