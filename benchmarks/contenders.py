"""What runs in `cpu`: our samplers, hand-written steps and other libraries, from a problem to steps to be timed."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import steinkern as sk

LEARNING_RATE = 0.05

Step = Callable[[Any], tuple[Any, Any]]
Run = Callable[[], Any]
Prepare = Callable[[int], Run]  # from a number of steps to a compiled call that takes them


class Problem(NamedTuple):
    """What the particles are moved towards, and from where; for some libraries in words of their own."""

    log_density: Callable[[jax.Array], jax.Array]
    points: jax.Array
    scores: Callable[[np.ndarray], np.ndarray] | None = None
    """Of all particles, in NumPy."""
    symbolic: Callable[[Any, Any], Any] | None = None
    """The log density of `x` in PyTensor, from the module `pytensor.tensor` and `x`."""


def gaussian(n: int, d: int) -> Problem:
    """A Gaussian of dense precision and condition number 100, and standard normal particles."""
    rotation_key, points_key = jr.split(jr.key(0))
    rotation, _ = jnp.linalg.qr(jr.normal(rotation_key, (d, d)))
    precision = (rotation * jnp.logspace(-1, 1, d)) @ rotation.T
    matrix = np.asarray(precision)
    return Problem(
        lambda x: -0.5 * x @ precision @ x,
        jr.normal(points_key, (n, d)),
        lambda points: -points @ matrix,
        lambda pt, x: -0.5 * pt.sum(x * pt.dot(pt.as_tensor_variable(matrix), x)),
    )


def logistic(n: int, d: int = 54, rows: int = 10_000) -> Problem:
    """Logistic regression on synthetic rows, all of them at every step, with a standard normal prior."""
    features_key, labels_key, truth_key, points_key = jr.split(jr.key(2), 4)
    features = jr.normal(features_key, (rows, d))
    labels = jr.bernoulli(labels_key, jax.nn.sigmoid(features @ jr.normal(truth_key, (d,)))).astype(features.dtype)
    x, y = np.asarray(features), np.asarray(labels)

    def log_density(w: jax.Array) -> jax.Array:
        logits = features @ w
        return jnp.sum(labels * logits - jax.nn.softplus(logits)) - 0.5 * w @ w

    def scores(points: np.ndarray) -> np.ndarray:
        return (y[None, :] - 1 / (1 + np.exp(-points @ x.T))) @ x - points

    def symbolic(pt: Any, w: Any) -> Any:
        logits = pt.dot(pt.as_tensor_variable(x), w)
        return pt.sum(y * logits - pt.softplus(logits)) - 0.5 * pt.sum(w**2)

    return Problem(log_density, 0.1 * jr.normal(points_key, (n, d)), scores, symbolic)


def scanned(step: Step, start: Any) -> Prepare:
    """Steps inside `lax.scan`, compiled ahead; what a step reports is kept, so that it has to be computed."""

    def prepare(steps: int) -> Run:
        def run(state: Any) -> Any:
            return jax.lax.scan(lambda state, _: step(state), state, length=steps)

        compiled = jax.jit(run).lower(start).compile()
        return lambda: compiled(start)

    return prepare


def own_step(problem: Problem, sampler: sk.samplers.AbstractSampler) -> tuple[Step, Any]:
    """The step of one of our samplers, and the state to start from."""
    target = sk.LogDensity(problem.log_density).bind(problem.points[0])
    key = jr.key(0)
    return lambda state: sampler.step(key, state, target), sampler.init(target, problem.points)


def steinkern(problem: Problem) -> Prepare:
    """Vanilla SVGD: RBF, the median bandwidth at every step, Adagrad."""
    return scanned(*own_step(problem, sk.svgd(None, LEARNING_RATE)))


def steinkern_all_pairs(problem: Problem) -> Prepare:
    """The same with the median over the pairs of all particles, as the others take it, not of 500 of them."""
    return scanned(*own_step(problem, sk.svgd(sk.RBF(sk.Median(max_points=2**16)), LEARNING_RATE)))


def steinkern_metric(problem: Problem) -> Prepare:
    """The same kernel in a dense metric that stays: what the average kernel costs beyond its curvature."""
    metric = sk.linalg.Dense(jnp.cov(problem.points.T)).factorize(1e-6)
    return scanned(*own_step(problem, sk.svgd(sk.kernels.Preconditioned(sk.RBF(), metric), LEARNING_RATE)))


def steinkern_fit(problem: Problem) -> Prepare:
    """The same through `fit`, a whole call with its checks, its history and its result."""
    target, sampler = sk.LogDensity(problem.log_density), sk.svgd(None, LEARNING_RATE)
    return lambda steps: (
        lambda: sk.fit(jr.key(0), target, sampler, problem.points, num_steps=steps, progress=False).points
    )


def plain(problem: Problem) -> Prepare:
    """The yardstick: a few lines of JAX, by matrix products; the bandwidth is the median of the initial particles."""
    optimizer, h = adagrad(), sk.Median()(problem.points)
    score = jax.vmap(jax.grad(problem.log_density))

    def step(state: Any) -> tuple[Any, None]:
        points, memory = state
        squares = jnp.sum(points**2, axis=1)
        r2 = squares[:, None] + squares[None, :] - 2 * points @ points.T
        gram = jnp.exp(-r2 / (2 * h))
        repulsion = (points * jnp.sum(gram, axis=1)[:, None] - gram @ points) / h
        velocity = (gram @ score(points) + repulsion) / points.shape[0]
        updates, memory = optimizer.update(-velocity, memory, points)
        return (optax.apply_updates(points, updates), memory), None

    return scanned(step, (problem.points, optimizer.init(problem.points)))


def adagrad() -> optax.GradientTransformation:
    return optax.adagrad(LEARNING_RATE, initial_accumulator_value=0.0)


def blackjax(problem: Problem) -> Prepare:
    """BlackJAX's SVGD."""
    import blackjax as bj

    algorithm = bj.svgd(jax.grad(problem.log_density), adagrad())
    start = algorithm.init(problem.points, {"length_scale": jnp.ones(())})
    return scanned(lambda state: (algorithm.step(state), None), start)


def numpyro(problem: Problem) -> Prepare:
    """NumPyro's SVGD; its own initial particles."""
    import numpyro as npy
    from numpyro.contrib.einstein import SVGD, RBFKernel

    n, d = problem.points.shape
    flat = npy.distributions.Normal(jnp.zeros(d), 1.0).to_event(1).mask(False)

    def model() -> None:
        npy.factor("log_density", problem.log_density(npy.sample("x", flat)))

    algorithm = SVGD(model, npy.optim.Adagrad(LEARNING_RATE), RBFKernel(), num_stein_particles=n)
    return scanned(algorithm.update, algorithm.init(jr.key(0)))


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
    if importlib.util.find_spec("torch") is None:  # it imports Torch for what is not used here
        sys.modules["torch"] = MagicMock()
    import simpleSVGD

    start, scores = np.asarray(problem.points), problem.scores
    assert scores is not None
    # Steps so small that nothing explodes: how long a step takes does not depend on where it leads.
    return lambda steps: lambda: simpleSVGD.update(start, lambda points: -scores(points), steps, stepsize=1e-6)


CONTENDERS: dict[str, Callable[[Problem], Prepare]] = {
    "plain-fixed": plain,
    "vanilla": steinkern,
    "vanilla-all-pairs": steinkern_all_pairs,
    "fit": steinkern_fit,
    "average": steinkern_metric,
    "blackjax": blackjax,
    "numpyro": numpyro,
    "msvgd": msvgd,
    "pymc": pymc,
    "simplesvgd": simplesvgd,
}
"""By method."""
