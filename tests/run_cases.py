"""Pairs of runs that differ in one place, and whether a checkpoint of the first may be taken for the second.

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
    same: bool
    part: str = "target"
    """Of `Run.digests`: the first part that differs, where one does."""
    quick: bool = False
    """Whether it is in the sample that every run of the tests takes."""


def script(text: str, **values: Any) -> Callable[[], dict[str, Any]]:
    """What a script gives to `fit`, run anew at every call."""

    def options() -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "script", **values}
        exec(HEADER + textwrap.dedent(text), names)
        return {"target": names["square"]} | {k: names[k] for k in ("target", "tempering", "sampler") if k in names}

    return options


def edited(name: str, text: str, before: str, now: str, part: str = "target", quick: bool = False) -> RunCase:
    """A script in which `HERE` was one text and has become another: another run."""
    return RunCase(name, script(text.replace("HERE", before)), script(text.replace("HERE", now)), False, part, quick)


def dressed(name: str, before: str, now: str, quick: bool = False) -> RunCase:
    """Two scripts that compute the same."""
    return RunCase(name, script(before), script(now), True, "", quick)


def closed_over(name: str, text: str, before: Any, now: Any, same: bool = False, quick: bool = False) -> RunCase:
    """A function that closes over a value."""
    factory = f"def factory(value):\n    def target(x):\n        return square(x, {text})\n    return target\n"
    factory += "target = factory(given)"
    return RunCase(
        name, script(factory, given=before), script(factory, given=now), same, "" if same else "target", quick
    )


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
    closed_over("equal arrays of objects", "value[0]", np.array([1.0, "a" * 2], object),
                np.array([float("1.0"), "".join("aa")], object), same=True, quick=True),
    closed_over("list for a tuple", "value[0]", [1.0, 2.0], (1.0, 2.0), same=True),
    closed_over("number of NumPy for one of Python", "float(value)", np.float32(1.0), 1.0, same=True),
    closed_over("entry that nothing reads", "value['scale']", {"scale": 1.0, "note": "old"}, {"scale": 1.0}, same=True),
]  # fmt: skip

TEMPERINGS = [
    edited("instance as tempering", WARM + "tempering = Warm(HERE)", "100.0", "10.0", "tempering", quick=True),
    edited("class variable of a tempering", WARM + "Warm.floor = HERE\ntempering = Warm(100.0)", "0.0", "0.1",
           "tempering"),
    edited("lambda as tempering", "tempering = lambda t: 1.0 - HERE / (1.0 + t)", "0.1", "0.2", "tempering"),
    edited("partial as tempering", """
        def warm(steps, t): return jnp.minimum(1.0, (t + 1.0) / steps)
        tempering = functools.partial(warm, HERE)
        """, "100.0", "10.0", "tempering"),
    edited("schedule of optax as tempering", """
        tempering = optax.linear_schedule(0.1, 1.0, HERE)
        """, "100", "10", "tempering"),
    edited("a late step of the tempering", """
        tempering = lambda t: jnp.where(t > HERE, 1.0, 0.5)
        """, "500", "900", "tempering"),
]  # fmt: skip

SAMPLERS = [
    edited("step size", "sampler = sk.svgd(optimiser=HERE)", "0.1", "0.2", "step"),
    edited("instance as schedule", RATE + "sampler = sk.svgd(optimiser=optax.sgd(Rate(HERE)))", "0.1", "0.2", "step",
           quick=True),
    edited("schedule of a lambda", "sampler = sk.svgd(optimiser=optax.sgd(lambda t: HERE / (1.0 + t)))", "0.1", "0.2",
           "step"),
    edited("optax.MultiSteps", """
        sampler = sk.svgd(optimiser=optax.MultiSteps(optax.sgd(0.1), HERE).gradient_transformation())
        """, "2", "3", "step", quick=True),
    edited("inner rule of optax.MultiSteps", """
        sampler = sk.svgd(optimiser=optax.MultiSteps(optax.sgd(HERE), 2).gradient_transformation())
        """, "0.1", "0.2", "step"),
    edited("inject_hyperparams", """
        sampler = sk.svgd(optimiser=optax.inject_hyperparams(optax.sgd)(learning_rate=HERE))
        """, "0.1", "0.2", "first state"),
    edited("inject_hyperparams with an instance", RATE + """
sampler = sk.svgd(optimiser=optax.inject_hyperparams(optax.sgd)(learning_rate=Rate(HERE)))
""", "0.1", "0.2", "first state"),
    edited("momentum", "sampler = sk.svgd(optimiser=optax.sgd(0.1, momentum=HERE))", "0.9", "0.8", "step"),
    edited("order of a chain", """
        sampler = sk.svgd(optimiser=optax.chain(*[optax.clip(1e-2), optax.scale(-0.1)][::HERE]))
        """, "1", "-1", "step"),
    edited("first state of the step rule", """
        sampler = sk.svgd(optimiser=optax.adagrad(0.1, initial_accumulator_value=HERE))
        """, "0.1", "0.2", "first state"),
    edited("masked step rule", """
        mask = np.array([True, HERE])
        zero = optax.stateless(lambda updates, parameters: updates * mask)
        sampler = sk.svgd(optimiser=optax.chain(zero, optax.sgd(0.1)))
        """, "True", "False", "step"),
    edited("bandwidth", "sampler = sk.svgd(sk.RBF(HERE))", "1.0", "2.0", "step"),
    edited("kernel", "sampler = sk.svgd(sk.HERE())", "RBF", "IMQ", "step"),
    edited("state of a kernel of the user's", """
        class Bump(sk.AbstractMatrixKernel):
            width: float = eqx.field(static=True)
            def __call__(self, x, y): return jnp.exp(-jnp.sum((x - y) ** 2) / self.width) * jnp.eye(2)
        sampler = sk.svgd(Bump(HERE))
        """, "1.0", "2.0", "step"),
    edited("global number of a kernel of the user's", """
        WIDTH = HERE
        class Bump(sk.AbstractMatrixKernel):
            def __call__(self, x, y): return jnp.exp(-jnp.sum((x - y) ** 2) / WIDTH) * jnp.eye(2)
        sampler = sk.svgd(Bump())
        """, "1.0", "2.0", "step"),
    edited("damping", "sampler = sk.matrix_svgd('average', sk.Hessian(), damping=HERE)", "0.1", "0.2", "step"),
    edited("steps between refreshed metrics", """
        sampler = sk.matrix_svgd('average', sk.Hessian(diagonal=True), refresh_every=HERE)
        """, "2", "3", "step"),
    edited("step size of Langevin chains", "sampler = sk.sgld(HERE)", "0.01", "0.02", "step"),
    edited("instance as step size of Langevin chains", RATE + "sampler = sk.sgld(Rate(HERE))", "0.01", "0.02", "step"),
]  # fmt: skip

SAME = [
    dressed("name, comment, docstring and variables", "def target(x):\n    y = x**2\n    return -jnp.sum(y)",
            "# Why.\n\ndef other(z):\n    'Text.'\n    w = z**2\n\n    return -jnp.sum(w)\ntarget = other", quick=True),
    dressed("lambda for a function", "def target(x): return square(x, 2.0)", "target = lambda x: square(x, 2.0)"),
    dressed("jit", "def target(x): return square(x)", "target = jax.jit(lambda x: jax.jit(square)(x))", quick=True),
    dressed("order of independent lines",
            "def tempering(t):\n    a = jnp.exp(-t / 2.0)\n    b = jnp.cos(t / 9.0)\n    return a + b**2",
            "def tempering(t):\n    b = jnp.cos(t / 9.0)\n    a = jnp.exp(-t / 2.0)\n    return a + b**2"),
    dressed("debug.print", "def target(x): return square(x)",
            "def target(x):\n    jax.debug.print('{}', x + 1.0)\n    return square(x)", quick=True),
    dressed("debug.print in a jitted helper",
            "helper = jax.jit(lambda x, y: x)\ndef target(x): return helper(square(x), 1)",
            "helper = jax.jit(lambda x, y: (jax.debug.print('{}', y), x)[1])\n"
            "def target(x): return helper(square(x), x[0] + 1.0)"),
    dressed("results that nobody uses", "target = square", "def target(x):\n    jnp.sum(x**3)\n    return square(x)"),
    dressed("named scope", "target = square",
            "def target(x):\n    with jax.named_scope('a'):\n        return square(x)"),
    dressed("class for a function", "def target(x): return square(x, 2.0)", """
        class Density:
            '''Text.'''
            unused = 3
            def __init__(self, scale): self.scale = scale
            def __call__(self, x): return square(x, self.scale)
            def another(self): return 1
        target = Density(2.0)
        """),
    dressed("functools.wraps around the same", "target = square", """
        @functools.wraps(square)
        def target(x): return square(x)
        """),
    dressed("jax.checkpoint", "target = square", "target = jax.checkpoint(square)"),
    dressed("set in the code", "def target(x): return square(x, float(sum({3, 1, 2})))",
            "def target(x): return square(x, float(sum({1, 2, 3})))"),
    dressed("another way to write a step rule", "sampler = sk.svgd(optimiser=optax.sgd(0.1))",
            "sampler = sk.svgd(optimiser=optax.scale(-0.1))"),
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
    RunCase("combine([a, b]) and combine([a, c])", combined(1), combined(2), False, "first particles"),
    RunCase("combine([a, b]) twice", combined(1), combined(1), True, ""),
    RunCase("likelihood", data(1.0), data(2.0), False, "target"),
    RunCase("constraint", within(-9.0), within(-8.0), False, "target"),
]
CASES = [*TARGETS, *CLOSURES, *TEMPERINGS, *SAMPLERS, *SAME, *OTHERS]
