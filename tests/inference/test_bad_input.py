"""What does not fit is refused at the edge: a `ValueError` that names the argument, what was expected and what came."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk

N, D = 4, 2


pytestmark = pytest.mark.usefixtures("as_installed")  # the type checker would refuse much of this in other words


def refused(call, *expected: str):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are checked here
        call()
    assert raised.type is ValueError  # none that JAX or NumPy derive from it
    for words in expected:
        assert words in str(raised.value)


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def of_pytree(parameters):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))


def log_likelihood(x, example):
    return -0.5 * (example - jnp.sum(x)) ** 2


# Building blocks.

HESSIAN = sk.Hessian()
MIXTURE = {"kind": "mixture", "curvature": HESSIAN}
POINTS = np.arange(6.0).reshape(3, 2)

CONSTRUCTIONS = {
    "bandwidth zero": (lambda: sk.RBF(0.0), "`bandwidth`", "positive", "0.0"),
    "bandwidth negative": (lambda: sk.IMQ(-1.0), "`bandwidth`", "positive", "-1.0"),
    "bandwidth nan": (lambda: sk.RBF(float("nan")), "`bandwidth`", "finite", "nan"),
    "bandwidth text": (lambda: sk.RBF("median"), "`bandwidth`", "number", "median"),
    "bandwidth infinite": (lambda: sk.IMQ(float("inf")), "`bandwidth`", "finite", "inf"),
    "one bandwidth of many": (lambda: sk.RBF(jnp.array([1.0, -2.0])), "`bandwidth`", "positive", "-2."),
    "exponent": (lambda: sk.IMQ(exponent=0.5), "`exponent`", "negative", "0.5"),
    "exponent zero": (lambda: sk.IMQ(exponent=0.0), "`exponent`", "negative", "0.0"),
    "median factor": (lambda: sk.Median(factor=0.0), "`factor`", "positive", "0.0"),
    "median factor negative": (lambda: sk.Median(factor=-1.0), "`factor`", "positive", "-1.0"),
    "median factor nan": (lambda: sk.Median(factor=float("nan")), "`factor`", "finite", "nan"),
    "median factor infinite": (lambda: sk.Median(factor=float("inf")), "`factor`", "finite", "inf"),
    "median sample": (lambda: sk.Median(max_points=1), "`max_points`", "at least 2", "1"),
    "median sample zero": (lambda: sk.Median(max_points=0), "`max_points`", "at least 2", "0"),
    "median of too many": (lambda: sk.Median(max_points=65_537), "`max_points`", "at most 65,536", "65537"),
    "learning rate zero": (lambda: sk.svgd(optimizer=0.0), "`optimizer`", "positive", "0.0"),
    "learning rate negative": (lambda: sk.svn(HESSIAN, optimizer=-0.1), "`optimizer`", "positive", "-0.1"),
    "optimizer by name": (lambda: sk.svgd(optimizer="adam"), "`optimizer`", "optax", "'adam'"),
    "optimizer of an ensemble": (
        lambda: sk.ensemble("adam"), "`optimizer` must be an optax optimizer, a learning rate or a schedule", "'adam'",
    ),
    "optimizer not called": (lambda: sk.svgd(optimizer=optax.adam), "`optimizer`", "optax", "adam"),
    "kernel by name": (lambda: sk.svgd("rbf"), "`kernel`", "RBF()", "'rbf'"),
    "kernel not called": (lambda: sk.svgd(sk.RBF), "`kernel`", "RBF()", "RBF"),
    "kernel of svn": (lambda: sk.svn(HESSIAN, sk.kernels.Linear()), "`kernel`", "radial", "Linear"),
    "kind": (lambda: sk.matrix_svgd("mean", HESSIAN), "`kind`", "'average', 'mixture'", "'mean'"),
    "curvature by name": (lambda: sk.matrix_svgd("average", "hessian"), "`curvature`", "Hessian()", "'hessian'"),
    "curvature not called": (lambda: sk.matrix_svgd("mixture", sk.Hessian), "`curvature`", "Hessian()", "class"),
    "curvature of svn": (lambda: sk.svn(jnp.eye(2)), "`curvature`", "Hessian()", "1."),
    "damping zero": (lambda: sk.matrix_svgd("average", HESSIAN, damping=0.0), "`damping`", "positive", "0.0"),
    "damping of svn": (lambda: sk.svn(HESSIAN, damping=-1e-3), "`damping`", "positive", "-0.001"),
    "damping of an operator": (lambda: sk.linalg.Dense(jnp.eye(2)).factorize(0.0), "`damping`", "positive", "0.0"),
    "decay": (lambda: sk.matrix_svgd("average", HESSIAN, decay=1.5), "`decay`", "between 0 and 1", "1.5"),
    "refresh": (lambda: sk.matrix_svgd("average", HESSIAN, refresh_every=0), "`refresh_every`", "at least 1", "0"),
    "measure": (lambda: sk.matrix_svgd("average", HESSIAN, measure_every=2), "`refresh_every`", "multiple", "2", "1"),
    "measure never": (
        lambda: sk.samplers.MetricSettings(refresh_every=2, measure_every=0), "`measure_every`", "at least 1", "0",
    ),
    "temperature for an average": (
        lambda: sk.matrix_svgd("average", HESSIAN, temperature=sk.Median()), "`temperature`", "'mixture'", "'average'",
    ),
    "no anchors": (lambda: sk.matrix_svgd(**MIXTURE, anchors=0), "`anchors`", "at least 1", "0"),
    "anchors of one axis": (lambda: sk.matrix_svgd(**MIXTURE, anchors=jnp.ones(3)), "`anchors`", "two axes", "(3,)"),
    "anchors for an average": (
        lambda: sk.matrix_svgd("average", HESSIAN, anchors=2), "`anchors`", "'mixture'", "'average'",
    ),
    "shrinkage": (lambda: sk.matrix_svgd(**MIXTURE, shrinkage=2.0), "`shrinkage`", "between 0 and 1", "2.0"),
    "temperature": (lambda: sk.matrix_svgd(**MIXTURE, temperature=0.0), "`temperature`", "positive", "0.0"),
    "backend": (lambda: sk.kernels.Isotropic(sk.RBF(), backend="cuda"), "`backend`", "'tiled'", "'cuda'"),
    "precision": (lambda: sk.kernels.Isotropic(sk.RBF(), precision="half"), "`precision`", "'fastest'", "'half'"),
    "weighting": (lambda: sk.matrix_svgd(**MIXTURE, weighting="soft"), "`weighting`", "'exact'", "'soft'"),
    "metric": (lambda: sk.svn(HESSIAN, metric="average"), "`metric`", "'mean', 'identity'", "'average'"),
    "repair": (lambda: sk.Hessian(repair="abs"), "`repair`", "'absolute', 'clip', None", "'abs'"),
    "floor": (lambda: sk.Hessian(floor=1.0), "`floor`", "[0, 1)", "1.0"),
    "floor negative": (lambda: sk.Hessian(floor=-0.1), "`floor`", "[0, 1)", "-0.1"),
    "step size zero": (lambda: sk.sgld(0.0), "`step_size`", "positive", "0.0"),
    "step sizes": (lambda: sk.sgld(np.array([0.1, 0.2])), "`step_size`", "one positive number", "0.2"),
    "step size negative": (lambda: sk.psgld(-0.1), "`step_size`", "positive", "-0.1"),
    "step size complex": (lambda: sk.sgld(1j), "`step_size` must be"),
    "step size complex, of NumPy": (lambda: sk.sgld(np.complex64(1)), "`step_size` must be"),
    "decay of psgld": (lambda: sk.psgld(0.1, decay=-0.5), "`decay`", "between 0 and 1", "-0.5"),
    "epsilon": (lambda: sk.psgld(0.1, epsilon=0.0), "`epsilon`", "positive", "0.0"),
    "freeze": (lambda: sk.psgld(0.1, freeze_after=0), "`freeze_after`", "at least 1", "0"),
    "surrogate": (lambda: sk.gradient_free_svgd(3.0), "`surrogate`", "function", "float"),
    "log density": (lambda: sk.LogDensity(3.0), "`function`", "log density", "float"),
    "log prior": (lambda: sk.Posterior(None, log_likelihood, 10), "`log_prior`", "function", "None"),
    "log likelihood": (lambda: sk.Posterior(log_density, None, 10), "`log_likelihood`", "function", "None"),
    "num_data fraction": (lambda: sk.Posterior(log_density, log_likelihood, 2.5), "`num_data`", "whole", "2.5"),
    "num_data nan": (lambda: sk.Posterior(log_density, log_likelihood, float("nan")), "`num_data` must be"),
    "num_data negative": (lambda: sk.Posterior(log_density, log_likelihood, -1), "`num_data` must be"),
    "num_data zero": (lambda: sk.Posterior(log_density, log_likelihood, 0), "`num_data`", "positive", "0"),
    "variance": (lambda: sk.Gaussian(-1.0), "`variance`", "positive", "-1.0"),
    "variance zero": (lambda: sk.Gaussian(0.0), "`variance`", "positive", "0.0"),
    "variance nan": (lambda: sk.Gaussian(float("nan")), "`variance`", "finite", "nan"),
    "interval": (lambda: sk.interval(1.0, 0.0), "`lower`", "below `upper`", "1.0 and 0.0"),
    "interval of a point": (lambda: sk.interval(1.0, 1.0), "`lower`", "below `upper`", "1.0 and 1.0"),
    "blocks with a gap": (lambda: sk.Graphical(sk.RBF(), [[0], [2]]), "`blocks`", "exactly once", "[[0], [2]]"),
    "blocks that overlap": (lambda: sk.Graphical(sk.RBF(), [[0], [0, 1]]), "`blocks`", "exactly once", "[0, 1]"),
    "no blocks": (lambda: sk.Graphical(sk.RBF(), []), "`blocks`", "exactly once", "[]"),
    "neighbours missing": (lambda: sk.Graphical(sk.RBF(), [[0], [1]], [[1]]), "`neighbors`", "2", "got 1"),
    "neighbours unknown": (lambda: sk.Graphical(sk.RBF(), [[0], [1]], [[5], []]), "`neighbors`", "2", "[5]"),
    "statistic": (lambda: sk.ksd2(POINTS, POINTS, statistic="W"), "`statistic`", "'U', 'V'", "'W'"),
    "statistic of one particle": (
        lambda: sk.ksd2(POINTS[:1], POINTS[:1], statistic="U"), "`statistic`", "at least two", "1",
    ),
    "kernel of a discrepancy": (lambda: sk.ksd2(POINTS, POINTS, kernel=1.0), "`kernel`"),
    "scores of fewer particles": (lambda: sk.ksd2(POINTS, POINTS[:1]), "`scores"),
    "scores of fewer particles, Stein ratio": (lambda: sk.stein_ratio(POINTS, POINTS[:1]), "`scores"),
    "unbiased mmd of one particle": (lambda: sk.mmd2(POINTS, POINTS[:1], biased=False), "`biased"),
    "two dimensions": (lambda: sk.mmd2(POINTS, POINTS[:, :1]), "`points` and `reference`", "2 and 1"),
    "bandwidth by a rule": (lambda: sk.RBF().profile(jnp.ones(())), "`bandwidth`", "a number", "Median"),
    "bandwidth by a rule, IMQ": (lambda: sk.IMQ().profile(jnp.ones(())), "is the rule Median", "adapt(points)"),
    "bandwidth by a rule, second derivative": (
        lambda: sk.IMQ().second_derivative(jnp.ones(())), "is the rule Median", "adapt(points)",
    ),
    "kernel to tilt": (lambda: sk.kernels.Tilted("rbf", jnp.sum), "`kernel`"),
    "log weight": (lambda: sk.kernels.Tilted(sk.RBF(1.0), 2.0), "`log_weight`"),
    "map": (lambda: sk.kernels.Transformed(sk.RBF(1.0), 2.0), "`transform`"),
    "isotropic kernel": (lambda: sk.kernels.Isotropic(sk.kernels.Linear()), "`scalar`"),
    "graphical kernel": (lambda: sk.Graphical(sk.kernels.Linear(), [[0]]), "`scalar`"),
    "metric of a kernel": (lambda: sk.kernels.Preconditioned(sk.RBF(), jnp.eye(2)), "`metric`", "DenseMetric.of"),
    "kernel function": (lambda: sk.kernels.UserKernel(2.0), "`function`"),
    "kernels of fewer blocks": (
        lambda: sk.kernels.PerBlock((sk.RBF(),), (2, 3)), "`sizes`", "one entry per kernel, 1",
    ),
    "empty block": (lambda: sk.kernels.PerBlock((sk.RBF(), sk.RBF()), (5, 0)), "`sizes`", "a whole number"),
    "kernel of a block": (lambda: sk.kernels.PerBlock(("rbf",), (5,)), "`kernel` must be a kernel such as"),
    "blocks of fewer columns": (
        lambda: sk.kernels.PerBlock((sk.RBF(), sk.RBF()), [2, 4]).check(5), "`sizes`", "5 coordinates", "(2, 4)",
    ),
    "kernel that does not fit its block": (
        lambda: sk.kernels.PerBlock((sk.Graphical(sk.RBF(), [[0], [1]]), sk.RBF()), (3, 2)).check(5), "`blocks`",
    ),
    "draws of kfac": (lambda: sk.KFAC(of_pytree, sk.Gaussian(), draws=0), "`draws`", "at least"),
    "seed of kfac": (lambda: sk.KFAC(of_pytree, sk.Gaussian(), seed=-1), "`seed`", "at least"),
    "examples of kfac": (lambda: sk.KFAC(of_pytree, sk.Gaussian(), examples=0), "`examples`", "at least"),
    "sides of kfac": (lambda: sk.KFAC(of_pytree, sk.Gaussian(), largest_side=0), "`largest_side`", "at least"),
    "model of kfac": (
        lambda: sk.KFAC(3, sk.Gaussian()), "`model` must be a function of the parameters and one example, got 3",
    ),
    "likelihood of kfac": (
        lambda: sk.KFAC(of_pytree, "softmax"), "`likelihood` must be a likelihood such as `Categorical()`", "'softmax'",
    ),
    "sharing of kfac": (
        lambda: sk.KFAC(of_pytree, sk.Gaussian(), sharing="both"), "`sharing`", "'expand', 'reduce', got 'both'",
    ),
    "output axis of kfac": (lambda: sk.kfac.KroneckerBlock("weight", output_axis=1), "`output_axis` must be 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_a_building_block_refuses(name):
    refused(*CONSTRUCTIONS[name])


# The fit.


class Ran:
    """A log density that counts, while it runs, how many particles it has been evaluated at."""

    def __init__(self, function=log_density):
        self.function, self.times = function, 0

    def __call__(self, *arguments):
        jax.debug.callback(self._count, jax.tree.leaves(arguments)[0])
        return self.function(*arguments)

    def _count(self, _):
        self.times += 1


def fit(target=None, sampler=None, particles=None, data=None, key=None, **options):
    """A fit of many steps, unless it is refused."""
    return sk.fit(
        jr.key(0) if key is None else key,
        log_density if target is None else target,
        sk.svgd() if sampler is None else sampler,
        np.ones((N, D)) if particles is None else particles,
        data,
        **{"num_steps": 100_000, **options},
    )


def posterior(num_data=10):
    return sk.Posterior(log_density, log_likelihood, num_data)


def positive(function):
    return sk.LogDensity(function, support=sk.positive)


ROWS = np.ones(10)

FITS = {
    "batch of keys": ({"key": jr.split(jr.key(0), 3)}, "`key`", "one PRNG key", "(3,)"),
    "seed": ({"key": 0}, "`key`", "jax.random.key(0)", "got 0"),
    "target": ({"target": 3.0}, "`target`", "function", "float"),
    "bound target": ({"target": posterior().bind(np.ones(D))}, "`target`", "before `bind`", "got BoundTarget"),
    "sampler by name": ({"sampler": "svgd"}, "`sampler`", "steinkern.svgd()", "'svgd'"),
    "sampler not called": ({"sampler": sk.svgd}, "`sampler`", "steinkern.svgd()", "function svgd"),
    "num_steps zero": ({"num_steps": 0}, "`num_steps`", "at least 1", "0"),
    "num_steps fraction": ({"num_steps": 1.5}, "`num_steps`", "whole number", "1.5"),
    "num_steps truth": ({"num_steps": True}, "`num_steps`", "whole number", "True"),
    "record_every": ({"record_every": 0}, "`record_every`", "at least 1", "0"),
    "tolerance zero": ({"tolerance": 0.0}, "`tolerance`", "positive", "0.0"),
    "tolerance negative": ({"tolerance": -1.0}, "`tolerance`", "positive", "-1.0"),
    "tolerance of a chain": ({"tolerance": 0.1, "sampler": sk.sgld(0.1)}, "`tolerance`", "num_steps", "SGLD"),
    "tempering": ({"tempering": 0.5}, "`tempering`", "schedule", "0.5"),
    "no particles": ({"particles": np.ones((0, D))}, "`particles`", "at least one particle", "n = 0"),
    "no leaves": ({"particles": {}}, "`particles`", "at least one array", "empty"),
    "no coordinates": ({"particles": np.ones((N, 0))}, "`particles`", "at least one coordinate", "0"),
    "scalar leaf": (
        {"particles": {"a": np.ones(N), "b": np.float64(1.0)}, "target": of_pytree},
        "`particles`", "leading particle axis", "b is a scalar",
    ),
    "no leaf but None": ({"particles": {"a": None}}, "`particles`", "at least one array", "empty"),
    "a leaf without coordinates": (
        {"particles": {"a": np.ones((N, 0))}, "target": of_pytree}, "`particles`", "at least one coordinate", "0",
    ),
    "boolean particles": ({"particles": np.ones((N, D), bool)}, "`particles`", "floating point", "bool"),
    "complex particles": ({"particles": np.ones((N, D), complex)}, "`particles`", "floating point", "complex128"),
    "a leaf of integers": (
        {"particles": {"a": np.ones(N), "b": np.ones(N, np.int32)}, "target": of_pytree},
        "`particles`", "floating point", "b has dtype int32",
    ),
    "integer particles": ({"particles": np.ones((N, D), int)}, "`particles`", "floating point", "int64"),
    "particles in a list": ({"particles": [1.0, 2.0]}, "`particles`", "arrays", "float"),
    "different numbers": (
        {"particles": {"a": np.ones(N), "b": np.ones(N + 1)}, "target": of_pytree},
        "`particles`", "same number", "a: 4, b: 5",
    ),
    "different dtypes": (
        {"particles": {"a": np.ones(N), "b": np.ones(N, np.float32)}, "target": of_pytree},
        "`particles`", "one dtype", "a: float64, b: float32",
    ),
    "nan particle": ({"particles": np.array([[np.nan, 1.0], *[[1.0, 1.0]] * 3])}, "`particles`", "finite", "1 of 4"),
    "particles not finite in a leaf": (
        {"particles": {"a": np.array([[0.0, np.nan], [np.inf, np.nan], [1.0, 1.0]])}, "target": of_pytree},
        "`particles`", "finite", "2 of 3", "in a",
    ),
    "infinite particles": ({"particles": np.full((N, D), np.inf)}, "`particles`", "finite", "4 of 4"),
    "outside the support": (
        {"particles": -np.ones((N, D)), "target": positive(log_density)},
        "`particles`", "inside their support", "GreaterThan",
    ),
    "on the edge": (
        {"particles": np.zeros((N, D)), "target": positive(log_density)}, "`particles`", "support", "outside",
    ),
    "not on the simplex": (
        {"target": sk.LogDensity(log_density, support=sk.simplex)}, "`particles`", "support", "Simplex",
    ),
    "not ordered": (
        {"target": sk.LogDensity(log_density, support=sk.ordered)}, "`particles`", "support", "Ordered",
    ),
    "support of no parameter": (
        {"target": sk.LogDensity(of_pytree, support={"b": sk.positive}), "particles": {"a": np.ones(N)}},
        "`support`", "parameters ['a']", "['b']",
    ),
    "support that is none": (
        {"target": sk.LogDensity(log_density, support="positive")}, "`support`", "steinkern.positive", "str",
    ),
    "vector": ({"target": lambda x: -(x**2)}, "`log density`", "scalar", "(2,)"),
    "integer value": ({"target": lambda x: jnp.asarray(1)}, "`log density`", "floating-point", "int64"),
    "no value": ({"target": lambda x: None}, "`log density`", "scalar", "None"),
    "other precision": (
        {"target": lambda x: log_density(x).astype(jnp.float32)}, "`log density`", "float64", "float32",
    ),
    "data in another precision": (
        {"target": lambda x, data: jnp.sum(data), "data": np.ones(3, np.float32)},
        "`log density`", "float64", "float32",
    ),
    "nan value": ({"target": lambda x: log_density(x) + jnp.nan}, "`particles`", "log density", "4 of the 4"),
    "minus infinity": (
        {"target": lambda x: jnp.where(x[0] > 2, 0.0, -jnp.inf)}, "`particles`", "infinite", "4 of the 4",
    ),
    "nan gradient": ({"target": lambda x: jnp.sum(jnp.sqrt(x - 1.0))}, "`particles`", "gradient", "4 of the 4"),
    "vector prior": (
        {"target": sk.Posterior(lambda x: x, log_likelihood, 10), "data": ROWS}, "`log_prior`", "scalar", "(2,)",
    ),
    "vector likelihood": (
        {"target": sk.Posterior(log_density, lambda x, row: x, 10), "data": ROWS}, "`log_likelihood`", "scalar", "(2,)",
    ),
    "no data": ({"target": posterior()}, "`data`", "fit(..., data=...)", "missing"),
    "other number of data": ({"target": posterior(11), "data": ROWS}, "`data`", "`num_data` is 11", "10 rows"),
    "ragged data": (
        {"target": posterior(), "data": {"x": ROWS, "y": ROWS[:3]}}, "`data`", "common leading axis", "(3,)",
    ),
    "data with a number": ({"target": posterior(), "data": {"x": ROWS, "y": 1.0}}, "`data`", "common leading axis"),
    "data without arrays": ({"target": posterior(), "data": {}}, "`data`", "common leading axis"),
    "batch too large": (
        {"target": posterior(), "data": ROWS, "batch_size": 11}, "`batch_size`", "between 1 and the 10", "11",
    ),
    "batch of none": ({"target": posterior(), "data": ROWS, "batch_size": 0}, "`batch_size`", "at least 1", "0"),
    "batch of a density": ({"data": ROWS, "batch_size": 5}, "`batch_size`", "Posterior", "5"),
    "two arguments without data": ({"target": lambda x, data: log_density(x)}, "`target`", "one argument", "(x, data)"),
    "one argument with data": ({"data": ROWS}, "`target`", "2 arguments", "(x)"),
    "data in words": ({"target": lambda x, data: log_density(x), "data": "abc"}, "`data`", "numbers", "'abc'"),
    "data of objects": (
        {"target": lambda x, data: log_density(x), "data": np.array([None])}, "`data`", "numbers", "ndarray",
    ),
    "schedule to a complex number": ({"sampler": sk.sgld(lambda count: jnp.asarray(1j))}, "`step_size` must be"),
    "schedule to nothing": ({"sampler": sk.sgld(lambda step: None)}, "`step_size`", "one real number", "None"),
    "schedule to a vector": ({"sampler": sk.psgld(lambda step: jnp.ones(2))}, "`step_size`", "one real number", "[2]"),
    "tempering to nothing": ({"tempering": lambda step: None}, "`tempering`", "one real number", "None"),
    "tempering to a vector": ({"tempering": lambda step: jnp.ones(2)}, "`tempering`", "one real number", "(2,)"),
    "negative tempering": ({"tempering": lambda step: -1.0}, "`tempering`", "at least 0", "-1.0 at step 0"),
    "tempering that ends below zero": (
        {"tempering": lambda step: 1.0 - step.astype(float), "num_steps": 3}, "`tempering`", "at least 0", "at step 2",
    ),
    "tempering nan": ({"tempering": lambda step: jnp.nan}, "`tempering`", "finite", "nan"),
    "tolerances": ({"tolerance": np.array([0.1, 0.2])}, "`tolerance`", "one positive number", "0.2"),
    "tolerance in words": ({"tolerance": "small"}, "`tolerance`", "positive number", "small"),
    "longest moves": ({"max_move": np.array([10.0, 20.0])}, "`max_move`", "one positive number", "20."),
    "longest move a switch": ({"max_move": True}, "`max_move`", "one positive number", "True"),
    "empty checkpoint": ({"checkpoint": ""}, "`checkpoint`", "directory", "''"),
    "throw in words": ({"throw": "no"}, "`throw`", "True or False", "'no'"),
    "progress in words": ({"progress": "no"}, "`progress`", "True or False", "'no'"),
    "record_particles in words": ({"record_particles": "no"}, "`record_particles`", "True or False", "'no'"),
    "longest move": ({"max_move": 0.0}, "`max_move`", "positive", "0.0"),
    "checkpoint number": ({"checkpoint": 3}, "`checkpoint`", "directory", "3"),
    "every without checkpoint": ({"checkpoint_every": 5}, "`checkpoint_every`", "`checkpoint`", "5"),
    "every zero": ({"checkpoint": "out", "checkpoint_every": 0}, "`checkpoint_every`", "at least 1", "0"),
    "too many anchors": (
        {"sampler": sk.matrix_svgd(**MIXTURE, anchors=N + 1)}, "`anchors`", "at most the number of particles, 4", "5",
    ),
    "wide anchors": (
        {"sampler": sk.matrix_svgd(**MIXTURE, anchors=np.ones((3, D + 1)))}, "`anchors`", "(l, 2)", "(3, 3)",
    ),
    "density of other shapes": (
        {"target": lambda x: jnp.sum(x - jnp.ones(3))}, "`target`", "one particle, shape (2,)", "(3,)",
    ),
    "density of other names": ({"target": lambda x: x["slope"]}, "`target`", "other names or shapes", "slope"),
    "likelihood of wider rows": (
        {"target": sk.Posterior(log_density, lambda x, row: row["x"] @ x, 10), "data": {"x": np.ones((10, 3))}},
        "`target`", "one row of `data`, shape x: (3,)", "got (3,) and (2,)",
    ),
    "scalar kernel function": (
        {"sampler": sk.svgd(lambda x, y: jnp.vdot(x, y)), "particles": np.arange(8.0).reshape(N, D)},
        "`kernel`", "(2, 2)", "()",
    ),
    "blocks of fewer coordinates": (
        {"sampler": sk.svgd(sk.Graphical.coordinatewise(sk.RBF(), 1))}, "`blocks`", "2", "1",
    ),
    "blocks of more coordinates": (
        {"sampler": sk.matrix_svgd(**MIXTURE, kernel=sk.Graphical.coordinatewise(sk.RBF(), 3))}, "`blocks`", "2", "3",
    ),
    "empirical fisher without data": (
        {"sampler": sk.matrix_svgd("average", sk.EmpiricalFisher())}, "`EmpiricalFisher`", "`data`", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FITS)
def test_a_fit_refuses(name):
    arguments, *expected = FITS[name]
    refused(lambda: fit(**arguments), *expected)


@pytest.mark.parametrize(
    "name", ["sampler by name", "num_steps fraction", "too many anchors", "scalar kernel function"]
)
def test_a_fit_refuses_before_any_long_work(name):
    target = Ran()
    refused(lambda: fit(**{"target": target, **FITS[name][0]}), *FITS[name][1:])
    jax.effects_barrier()
    # At most a first look, the value and the gradient at the first particles, and one to either side for its slope.
    assert target.times <= 6 * N


def test_what_is_checked_once_a_trace_is_not_run_at_every_step():
    target = Ran(lambda x: log_density(x) + jnp.nan)
    refused(lambda: fit(target), "`particles`", "NaN")
    jax.effects_barrier()
    assert 0 < target.times <= 2 * N
