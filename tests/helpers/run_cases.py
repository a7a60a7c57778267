"""Pairs of runs that differ in one place: a checkpoint of the first may not be taken for the second.

Scripts are given as text, as a user has them before and after an edit: `target`, `tempering` and `sampler` are the
names that a run takes from one. Most edits change the log density far from the first particles alone: its values there
do not tell.
"""

import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

STARTS = np.random.default_rng(1).normal(size=(4, 2))
LARGE = np.random.default_rng(2).normal(size=(300, 2))

HEADER = """
import collections, dataclasses, enum, fractions, functools, types
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import steinkern as sk

def square(x, scale=1.0):
    return -0.5 * jnp.sum(x**2) - scale * jnp.sum(jnp.where(jnp.abs(x) > 9.0, x**2, 0.0))
"""


class RunCase(NamedTuple):
    """Two runs: the options of `fit` for each."""

    name: str
    before: Callable[[], dict[str, Any]]
    now: Callable[[], dict[str, Any]]
    quick: bool = False
    """Whether it is in the sample that every run of the tests takes."""


def script(text: str, **values: Any) -> Callable[[], dict[str, Any]]:
    """What a script gives to `fit`, run anew at every call."""

    def options() -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "script", **values}
        exec(HEADER + textwrap.dedent(text), names)
        return {"target": names["square"]} | {k: names[k] for k in ("target", "tempering", "sampler") if k in names}

    return options


def edited(name: str, text: str, before: str, now: str, quick: bool = False) -> RunCase:
    """A script in which `HERE` was one text and has become another: another run."""
    return RunCase(name, script(text.replace("HERE", before)), script(text.replace("HERE", now)), quick)


def closed_over(name: str, text: str, before: Any, now: Any, quick: bool = False) -> RunCase:
    """A function that closes over a value."""
    factory = f"def factory(value):\n    def target(x):\n        return square(x, {text})\n    return target\n"
    factory += "target = factory(given)"
    return RunCase(name, script(factory, given=before), script(factory, given=now), quick)


WARM = """
class Warm:
    floor = 0.0
    def __init__(self, steps):
        self.steps = steps
    def __call__(self, t):
        return jnp.minimum(1.0, self.floor + (t + 1.0) / self.steps)
"""
RATE = """
class Rate:
    def __init__(self, rate):
        self.rate = rate
    def __call__(self, count):
        return self.rate / (1.0 + count)
"""

TARGETS = [
    edited("number in the code", "def target(x): return square(x, HERE)", "0.5", "0.6", quick=True),
    edited("primitive", "def target(x): return square(x, jnp.HERE(x[0]))", "sin", "cos"),
    edited("default", "def target(x, scale=HERE): return square(x, scale)", "1.0", "2.0"),
    edited("keyword default", "def target(x, *, scale=HERE): return square(x, scale)", "1.0", "2.0"),
    edited("inner lambda", "def target(x): return square(x, (lambda y: HERE * y)(x[0]))", "1.0", "2.0"),
    edited("helper", "def helper(x): return HERE * x\ndef target(x): return square(x, helper(x[0]))", "1.0", "2.0"),
    edited("jitted helper", """
        @jax.jit
        def helper(x): return HERE * x
        def target(x): return square(x, helper(x[0]))
        """, "1.0", "2.0"),
    edited("global number", "SCALE = HERE\ndef target(x): return square(x, SCALE)", "1.0", "2.0"),
    edited("global array", """
        SCALES = np.array([1.0, HERE])
        def target(x): return square(x, jnp.sum(x * SCALES))
        """, "1.0", "2.0"),
    edited("global closure", """
        def factory(scale):
            return lambda x: square(x, scale)
        helper = factory(HERE)
        def target(x): return helper(x)
        """, "1.0", "2.0", quick=True),
    edited("global partial", """
        helper = functools.partial(square, scale=HERE)
        def target(x): return helper(x)
        """, "1.0", "2.0", quick=True),
    edited("partial", "target = functools.partial(lambda scale, x: square(x, scale), HERE)", "1.0", "2.0"),
    edited("partial of a partial", """
        target = functools.partial(functools.partial(lambda a, b, x: square(x, a * b), 2.0), HERE)
        """, "1.0", "2.0"),
    edited("functools.wraps", """
        def scaled(scale):
            def decorate(function):
                @functools.wraps(function)
                def inner(x): return function(x, scale)
                return inner
            return decorate
        target = scaled(HERE)(square)
        """, "1.0", "2.0", quick=True),
    edited("state of an instance", WARM + "warm = Warm(HERE)\ndef target(x): return square(x, warm(0))", "100", "10"),
    edited("instance as log density", """
        class Density:
            def __init__(self, scale): self.scale = scale
            def __call__(self, x): return square(x, self.scale)
        target = Density(HERE)
        """, "1.0", "2.0", quick=True),
    edited("instance with slots", """
        class Density:
            __slots__ = ("scale", "__weakref__")
            def __init__(self, scale): self.scale = scale
            def __call__(self, x): return square(x, self.scale)
        target = Density(HERE)
        """, "1.0", "2.0"),
    edited("bound method", """
        class Density:
            def __init__(self, scale): self.scale = scale
            def log_density(self, x): return square(x, self.scale)
        target = Density(HERE).log_density
        """, "1.0", "2.0"),
    edited("class variable", """
        class Density:
            scale = HERE
            def __call__(self, x): return square(x, self.scale)
        target = Density()
        """, "1.0", "2.0", quick=True),
    edited("class variable of a base", """
        class Base:
            scale = HERE
        class Density(Base):
            def __call__(self, x): return square(x, self.scale)
        target = Density()
        """, "1.0", "2.0"),
    edited("method of a base", """
        class Base:
            def scale(self): return HERE
        class Density(Base):
            def __call__(self, x): return square(x, self.scale())
        target = Density()
        """, "1.0", "2.0"),
    edited("static method", """
        class Density:
            @staticmethod
            def scale(): return HERE
            def __call__(self, x): return square(x, self.scale())
        target = Density()
        """, "1.0", "2.0"),
    edited("class method", """
        class Density:
            @classmethod
            def scale(cls): return HERE
            def __call__(self, x): return square(x, self.scale())
        target = Density()
        """, "1.0", "2.0"),
    edited("property", """
        class Density:
            @property
            def scale(self): return HERE
            def __call__(self, x): return square(x, self.scale)
        target = Density()
        """, "1.0", "2.0"),
    edited("dataclass", """
        @dataclasses.dataclass(frozen=True)
        class Density:
            scale: float
            def __call__(self, x): return square(x, self.scale)
        target = Density(HERE)
        """, "1.0", "2.0"),
    edited("module of Equinox with an array", """
        class Density(eqx.Module):
            scale: jax.Array
            def __call__(self, x): return square(x, self.scale)
        target = Density(jnp.asarray(HERE))
        """, "1.0", "2.0"),
    edited("module of Equinox with a static field", """
        class Density(eqx.Module):
            scale: float = eqx.field(static=True)
            def __call__(self, x): return square(x, self.scale)
        target = Density(HERE)
        """, "1.0", "2.0"),
    edited("helper through a module", """
        helpers = types.ModuleType("helpers")
        helpers.scale = lambda x: HERE * x
        def target(x): return square(x, helpers.scale(x[0]))
        """, "1.0", "2.0", quick=True),
    edited("number through a module", """
        helpers = types.ModuleType("helpers")
        helpers.SCALE = HERE
        def target(x): return square(x, helpers.SCALE)
        """, "1.0", "2.0"),
    edited("name of a function", "def target(x): return square(x, getattr(jnp, 'HERE')(x[0]))", "sin", "cos"),
    edited("cached helper", """
        @functools.lru_cache
        def scale(): return HERE
        def target(x): return square(x, scale())
        """, "1.0", "2.0"),
    edited("rule of a custom_jvp", """
        @jax.custom_jvp
        def helper(x): return jnp.sum(x**2)
        helper.defjvp(lambda p, t: (helper(*p), jnp.sum(p[0] * jnp.where(p[0] > 9.0, HERE, 2.0) * t[0])))
        def target(x): return -0.5 * helper(x)
        """, "2.0", "2.5", quick=True),
    edited("rule of a custom_vjp", """
        @jax.custom_vjp
        def helper(x): return jnp.sum(x**2)
        helper.defvjp(lambda x: (helper(x), x), lambda x, g: (jnp.where(x > 9.0, HERE, 2.0) * g * x,))
        def target(x): return -0.5 * helper(x)
        """, "2.0", "2.5"),
    edited("body of a scan", """
        def target(x): return square(x, jax.lax.scan(lambda c, a: (c + HERE * a, None), 0.0, x)[0])
        """, "1.0", "2.0"),
    edited("length of a loop", """
        def target(x): return square(x, jax.lax.fori_loop(0, HERE, lambda i, y: y * 1.1, x[0]))
        """, "3", "4"),
    edited("branch that is not taken at the start", """
        def target(x): return square(x, jnp.where(x[0] > 7.0, HERE, 1.0))
        """, "1.0", "2.0"),
    edited("branch of a cond", """
        def target(x): return jax.lax.cond(x[0] > 9.0, lambda x: square(x, HERE), square, x)
        """, "1.0", "2.0"),
    edited("member of an enum", """
        class Kind(enum.Enum):
            ONE = 1.0
            TWO = 2.0
        def target(x, kind=Kind.HERE): return square(x, kind.value)
        """, "ONE", "TWO"),
    edited("precision of the arithmetic", """
        def target(x): return square(x, jnp.sum(x.astype(HERE)).astype(x.dtype))
        """, "jnp.float64", "jnp.float32"),
]  # fmt: skip

CLOSURES = [
    closed_over("set", "float(sum(value))", {1, 2}, {1, 3}, quick=True),
    closed_over("frozenset", "float(sum(value))", frozenset({1, 2}), frozenset({1, 3})),
    closed_over("range", "float(len(value))", range(2), range(3), quick=True),
    closed_over("bytes", "float(value[0])", b"a", b"b"),
    closed_over("bytearray", "float(value[0])", bytearray(b"a"), bytearray(b"b")),
    closed_over("complex", "abs(value)", 1 + 2j, 1 + 3j),
    closed_over("dictionary", "value['scale']", {"scale": 1.0}, {"scale": 2.0}),
    closed_over("list", "value[1]", [1.0, 1.0], [1.0, 2.0]),
    closed_over("tuple in a tuple", "value[0][0]", ((1.0,),), ((2.0,),)),
    closed_over("text", "float(len(value))", "a", "ab"),
    closed_over("one of many numbers", "jnp.sum(jnp.asarray(value) @ x)", LARGE, LARGE + 1e-9 * np.eye(300, 2)),
    closed_over("array of JAX", "value[0]", jnp.array([1.0, 2.0]), jnp.array([1.5, 2.0])),
    closed_over("number of NumPy", "value", np.float64(1.0), np.float64(2.0)),
    closed_over("array of objects", "value[0]", np.array([1.0, "a"], object), np.array([2.0, "a"], object)),
    closed_over("masked array", "float(value.sum())", np.ma.masked_array([1.0, 2.0], [False, True]),
                np.ma.masked_array([1.0, 2.0], [False, False])),
    closed_over("iterator's length", "float(len(value))", {"a": 1}.keys(), {"a": 1, "b": 2}.keys()),
]  # fmt: skip

TEMPERINGS = [
    edited("instance as tempering", WARM + "tempering = Warm(HERE)", "100.0", "10.0", quick=True),
    edited("class variable of a tempering", WARM + "Warm.floor = HERE\ntempering = Warm(100.0)", "0.0", "0.1"),
    edited("lambda as tempering", "tempering = lambda t: 1.0 - HERE / (1.0 + t)", "0.1", "0.2"),
    edited("partial as tempering", """
        def warm(steps, t): return jnp.minimum(1.0, (t + 1.0) / steps)
        tempering = functools.partial(warm, HERE)
        """, "100.0", "10.0"),
    edited("schedule of optax as tempering", """
        tempering = optax.linear_schedule(0.1, 1.0, HERE)
        """, "100", "10"),
    edited("a late step of the tempering", """
        tempering = lambda t: jnp.where(t > HERE, 1.0, 0.5)
        """, "500", "900"),
]  # fmt: skip

SAMPLERS = [
    edited("step size", "sampler = sk.svgd(optimizer=HERE)", "0.1", "0.2"),
    edited("instance as schedule", RATE + "sampler = sk.svgd(optimizer=optax.sgd(Rate(HERE)))", "0.1", "0.2",
           quick=True),
    edited("schedule of a lambda", "sampler = sk.svgd(optimizer=optax.sgd(lambda t: HERE / (1.0 + t)))", "0.1", "0.2"),
    edited("optax.MultiSteps", """
        sampler = sk.svgd(optimizer=optax.MultiSteps(optax.sgd(0.1), HERE).gradient_transformation())
        """, "2", "3", quick=True),
    edited("inner rule of optax.MultiSteps", """
        sampler = sk.svgd(optimizer=optax.MultiSteps(optax.sgd(HERE), 2).gradient_transformation())
        """, "0.1", "0.2"),
    edited("inject_hyperparams", """
        sampler = sk.svgd(optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=HERE))
        """, "0.1", "0.2"),
    edited("inject_hyperparams with an instance", RATE + """
sampler = sk.svgd(optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=Rate(HERE)))
""", "0.1", "0.2"),
    edited("momentum", "sampler = sk.svgd(optimizer=optax.sgd(0.1, momentum=HERE))", "0.9", "0.8"),
    edited("order of a chain", """
        sampler = sk.svgd(optimizer=optax.chain(*[optax.clip(1e-2), optax.scale(-0.1)][::HERE]))
        """, "1", "-1"),
    edited("first state of the step rule", """
        sampler = sk.svgd(optimizer=optax.adagrad(0.1, initial_accumulator_value=HERE))
        """, "0.1", "0.2"),
    edited("masked step rule", """
        mask = np.array([True, HERE])
        zero = optax.stateless(lambda updates, parameters: updates * mask)
        sampler = sk.svgd(optimizer=optax.chain(zero, optax.sgd(0.1)))
        """, "True", "False"),
    edited("bandwidth", "sampler = sk.svgd(sk.RBF(HERE))", "1.0", "2.0"),
    edited("kernel", "sampler = sk.svgd(sk.HERE())", "RBF", "IMQ"),
    edited("state of a kernel of the user's", """
        class Bump(sk.kernels.AbstractMatrixKernel):
            width: float = eqx.field(static=True)
            def __call__(self, x, y): return jnp.exp(-jnp.sum((x - y) ** 2) / self.width) * jnp.eye(2)
        sampler = sk.svgd(Bump(HERE))
        """, "1.0", "2.0"),
    edited("global number of a kernel of the user's", """
        WIDTH = HERE
        class Bump(sk.kernels.AbstractMatrixKernel):
            def __call__(self, x, y): return jnp.exp(-jnp.sum((x - y) ** 2) / WIDTH) * jnp.eye(2)
        sampler = sk.svgd(Bump())
        """, "1.0", "2.0"),
    edited("damping", "sampler = sk.matrix_svgd('average', sk.Hessian(), damping=HERE)", "0.1", "0.2"),
    edited("steps between refreshed metrics", """
        sampler = sk.matrix_svgd('average', sk.Hessian(diagonal=True), refresh_every=HERE)
        """, "2", "3"),
    edited("step size of Langevin chains", "sampler = sk.sgld(HERE)", "0.01", "0.02"),
    edited("instance as step size of Langevin chains", RATE + "sampler = sk.sgld(Rate(HERE))", "0.01", "0.02"),
]  # fmt: skip


def combined(second: int) -> Callable[[], dict[str, Any]]:
    """A run from the particles of two results, of which the second was made with another key."""

    def options() -> dict[str, Any]:
        def result(seed: int) -> sk.Result:
            start = jr.normal(jr.key(seed), (9, 2))
            return sk.fit(jr.key(0), gaussian, sk.svgd(), start, num_steps=2)

        return {"target": gaussian, "particles": sk.combine([result(0), result(second)])}

    return options


def gaussian(x):
    """A log density for which it does not matter."""
    return -0.5 * jnp.sum(x**2)


def data(scale: float) -> Callable[[], dict[str, Any]]:
    """A posterior with minibatches."""

    def log_likelihood(x, row):
        return -0.5 * jnp.where(x[0] > 9.0, scale, 1.0) * (row - x[0]) ** 2

    return lambda: {"target": sk.Posterior(gaussian, log_likelihood, 6), "data": np.arange(6.0), "batch_size": 2}


def within(low: float) -> Callable[[], dict[str, Any]]:
    """A constraint."""
    return lambda: {"target": sk.LogDensity(gaussian, support=sk.interval(low, 9.0))}


OTHERS = [
    RunCase("combine([a, b]) and combine([a, c])", combined(1), combined(2)),
    RunCase("likelihood", data(1.0), data(2.0)),
    RunCase("constraint", within(-9.0), within(-8.0)),
]
CASES = [*TARGETS, *CLOSURES, *TEMPERINGS, *SAMPLERS, *OTHERS]
