"""Tables of odd inputs: public functions, one argument each, and kinds of values that are not what they look like."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

KEY = jr.key(0)
POINTS = np.array([[0.0, 1.0], [2.0, 3.0], [5.0, 1.0], [1.0, 0.0]])
REFERENCE = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
LABELS = np.array([0.0, 1.0, 1.0, 0.0, 1.0])


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def with_data(x, data):
    return -0.5 * jnp.sum((x - jnp.mean(data.astype(x.dtype))) ** 2)


POSTERIOR = sk.Posterior(log_density, lambda x, row: -0.5 * (row.astype(x.dtype) - x[0]) ** 2, len(LABELS))
SAMPLER, KERNEL = sk.svgd(), sk.RBF(1.0)
MIXTURE = sk.Hessian()


def one_output(x, row):
    return x[:1]


def times_row(x, row):
    return x[0] * row.astype(x.dtype)


def fitted():
    return sk.fit(KEY, POSTERIOR, SAMPLER, POINTS, LABELS, num_steps=1)


def log_predictive(function, likelihood):
    return lambda value: fitted().predict(function, LABELS).log_density(likelihood, value)


# The argument's name, a good value, and the call with another one in its place.
ARRAYS = {
    "points of ksd2": ("points", POINTS, lambda value: sk.ksd2(value, -POINTS, KERNEL)),
    "scores of ksd2": ("scores", POINTS, lambda value: sk.ksd2(POINTS, value, KERNEL)),
    "points of mmd2": ("points", POINTS, lambda value: sk.mmd2(value, REFERENCE, KERNEL)),
    "reference of mmd2": ("reference", REFERENCE, lambda value: sk.mmd2(POINTS, value, KERNEL)),
    "points of the Stein ratio": ("points", POINTS, lambda value: sk.stein_ratio(value, -POINTS)),
    "scores of the Stein ratio": ("scores", POINTS, lambda value: sk.stein_ratio(POINTS, value)),
    "particles of fit": (
        "particles", POINTS, lambda value: sk.fit(KEY, log_density, SAMPLER, value, num_steps=2).points,
    ),
    "data of fit": ("data", LABELS, lambda value: sk.fit(KEY, POSTERIOR, SAMPLER, POINTS, value, num_steps=1).points),
    "data of a plain log density": (
        "data", LABELS, lambda value: sk.fit(KEY, with_data, SAMPLER, POINTS, value, num_steps=1).points,
    ),
    "center of initial": ("center", POINTS[1], lambda value: sk.initial.gaussian(KEY, value, 3)),
    "scale of initial": ("scale", POINTS[1], lambda value: sk.initial.gaussian(KEY, jnp.zeros(2), 3, value)),
    "start of a mode": ("start", POINTS[1], lambda value: sk.initial.around_mode(KEY, log_density, value, 3)),
    "data of a mode": ("data", LABELS, lambda value: sk.initial.around_mode(KEY, with_data, jnp.ones(2), 3, value)),
    "data of scores": ("data", LABELS, lambda value: fitted().scores(value)),
    "data of predictions": ("data", LABELS, lambda value: fitted().predict(times_row, value).mean),
    "labels of Bernoulli": ("labels", LABELS, log_predictive(one_output, sk.Bernoulli())),
    "labels of Categorical": ("labels", LABELS, log_predictive(lambda x, row: x, sk.Categorical())),
    "labels of Gaussian": ("labels", LABELS, log_predictive(one_output, sk.Gaussian(1.0))),
    "data of BlackJAX": (
        "data", LABELS, lambda value: sk.as_blackjax(POSTERIOR, SAMPLER, value).init(jnp.asarray(POINTS)).position,
    ),
    "position of BlackJAX": (
        "position", POINTS, lambda value: sk.as_blackjax(log_density, SAMPLER).init(value).inner.points,
    ),
    "anchors": ("anchors", POINTS, 
        lambda value: sk.matrix_svgd("mixture", MIXTURE, anchors=value).rule.anchors_for(jnp.asarray(POINTS)),
    ),
}  # fmt: skip

SLOW_ARRAYS = {
    "start of sample": ("start", POINTS[1], lambda value: sk.sample(KEY, log_density, value).points),
    "data of sample": ("data", LABELS, lambda value: sk.sample(KEY, with_data, jnp.ones(2), data=value).points),
}

# Kinds that hold the same numbers: the answer is the same, or they are refused by name.
SAME_NUMBERS = {
    "int64": lambda good: good.astype(np.int64),
    "uint8": lambda good: good.astype(np.uint8),
    "big-endian": lambda good: good.astype(">f8"),
    "big-endian int": lambda good: good.astype(">i4"),
    "float16": lambda good: good.astype(np.float16),
    "long double": lambda good: good.astype(np.longdouble),
    "no entry masked": lambda good: np.ma.masked_array(good, mask=False),
    "Fortran order": np.asfortranarray,
    "strided": lambda good: np.repeat(good, 2, axis=0)[::2],
    "read-only": lambda good: np.broadcast_to(good, good.shape),
    "JAX": jnp.asarray,
}
# Kinds for which there is no right answer anywhere.
NO_ANSWER = {
    "masked": lambda good: np.ma.masked_array(good, mask=good == good.flat[1]),
    "object": lambda good: good.astype(object),
    "text": lambda good: good.astype(str),
    "datetime": lambda good: good.astype(np.int64).astype("M8[s]"),
    "None": lambda good: None,
    "keys": lambda good: jr.split(KEY, len(good)),
}
# Kinds for which it depends on the argument: right as floating-point numbers, or refused by name.
EITHER = {
    "bool": lambda good: good > 0,
    "list": lambda good: good.tolist(),
    "tuple": lambda good: tuple(good.tolist()),
    "complex": lambda good: good + 0j,
}
# Of another shape: refused, or another problem altogether that has an answer.
SHAPES = {
    "three axes": lambda good: np.stack([np.atleast_2d(good), np.atleast_2d(good) + 1]),
    "empty": lambda good: good[:0],
    "a number": lambda good: 1.0,
    "ragged": lambda good: [[1.0], [1.0, 2.0]],
    "dictionary": lambda good: {"a": good},
}


def learning_rate(sampler):
    """What the step rule of a sampler makes of a gradient of 1: Adagrad's first step is its learning rate."""
    rule = sampler.optimizer
    updates, _ = rule.update(jnp.ones(()), rule.init(jnp.ones(())), jnp.ones(()))
    return -updates


NUMBERS = {
    "bandwidth of RBF": ("bandwidth", lambda value: sk.RBF(value).bandwidth),
    "bandwidth of IMQ": ("bandwidth", lambda value: sk.IMQ(value).bandwidth),
    "factor": ("factor", lambda value: sk.Median(value).factor),
    "step size of SGLD": ("step_size", lambda value: sk.sgld(value).step_size),
    "step size of pSGLD": ("step_size", lambda value: sk.psgld(value).step_size),
    "decay": ("decay", lambda value: sk.psgld(0.1, decay=value).decay),
    "epsilon": ("epsilon", lambda value: sk.psgld(0.1, epsilon=value).epsilon),
    "learning rate of SVGD": ("optimizer", lambda value: learning_rate(sk.svgd(optimizer=value))),
    "learning rate of an ensemble": ("optimizer", lambda value: learning_rate(sk.ensemble(value))),
    "learning rate of shared parameters": (
        "optimizer", lambda value: learning_rate(sk.half_bayesian(SAMPLER, value)),
    ),
    "damping of SVN": ("damping", lambda value: sk.svn(MIXTURE, damping=value).damping),
    "damping": ("damping", lambda value: sk.matrix_svgd("average", MIXTURE, damping=value).rule.settings.damping),
    "temperature": (
        "temperature", lambda value: sk.matrix_svgd("mixture", MIXTURE, temperature=value).rule.temperature,
    ),
    "shrinkage": ("shrinkage", lambda value: sk.matrix_svgd("mixture", MIXTURE, shrinkage=value).rule.shrinkage),
    "variance": ("variance", lambda value: sk.Gaussian(value).variance),
    "lower bound": ("lower", lambda value: sk.greater_than(value).lower),
    "upper bound": ("upper", lambda value: sk.less_than(value).upper),
    "lower end": ("lower", lambda value: sk.interval(value, 3.0).lower),
    "upper end": ("upper", lambda value: sk.interval(-1.0, value).upper),
    "offset": ("offset", lambda value: sk.kernels.Linear(value).offset),
    "level": ("level", lambda value: fitted().predict(one_output, LABELS, level=value).level),
}  # fmt: skip
HALVES = {
    "float": 0.5, "float64": np.float64(0.5), "float32": np.float32(0.5), "float16": np.float16(0.5),
    "array": np.array(0.5), "big-endian": np.array(0.5, ">f8"), "JAX": jnp.asarray(0.5),
}  # fmt: skip
NO_NUMBERS = {
    "True": True, "NumPy's True": np.True_, "JAX's True": jnp.asarray(True), "text": "0.5", "complex": 0.5j,
    "NaN": float("nan"), "infinity": float("inf"), "fraction": Fraction(1, 2), "object": object(),
    "dictionary": {"a": 0.5}, "ragged": [[1.0], [1.0, 2.0]], "key": KEY,
}  # fmt: skip


def leaves(value):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(value)]
