"""What is compiled, how often, and what it holds: one program for a shape, data as arguments, no pairwise vectors."""

import json
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.extend import core

import steinkern as sk
from tests.helpers.processes import output_of

N, D = 4, 2


class Counted:
    """A log density with data that counts how often Python runs it: once for every trace."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, data):
        self.calls += 1
        return -0.5 * jnp.sum((x - data) ** 2) - 0.1 * jnp.sum(x**4)


def fit(target, sampler, seed=0, particles=None, data=None, num_steps=2, **options):
    particles = jr.normal(jr.key(1), (N, D)) if particles is None else particles
    data = jnp.zeros(D) if data is None else data
    return sk.fit(jr.key(seed), target, sampler, particles, data, num_steps=num_steps, **options)


def test_a_long_run_traces_no_more_often_than_a_short_one():
    short, long = Counted(), Counted()
    fit(short, sk.svgd(), num_steps=1)
    fit(long, sk.svgd(), num_steps=400)
    assert long.calls == short.calls


SAMPLERS = {
    "svgd": lambda bandwidth=1.0: sk.svgd(sk.RBF(bandwidth)),
    "average": lambda **numbers: sk.matrix_svgd("average", sk.Hessian(), **numbers),
    "mixture": lambda seed=0, **numbers: sk.matrix_svgd(
        "mixture", sk.Hessian(), anchors=jr.normal(jr.key(seed), (3, D)), **numbers
    ),
    "svn": lambda **numbers: sk.svn(sk.Hessian(), **numbers),
    "sgld": lambda step_size=0.01: sk.sgld(step_size),
    "psgld": lambda **numbers: sk.psgld(0.01, **numbers),
}


@pytest.fixture(scope="module")
def compiled():
    """For every sampler a log density that has been fitted with it once."""
    targets = {}

    def get(name: str) -> Counted:
        if name not in targets:
            targets[name] = Counted()
            fit(targets[name], SAMPLERS[name]())
        return targets[name]

    return get


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("svgd", {}),
        ("svgd", {"bandwidth": 0.3}),
        ("average", {}),
        ("average", {"damping": 1e-2}),
        ("mixture", {"damping": 1e-2, "temperature": 2.0, "shrinkage": 0.5}),
        ("mixture", {"seed": 1}),
        ("svn", {"damping": 1e-2}),
        ("sgld", {"step_size": 0.02}),
        ("psgld", {"decay": 0.9, "epsilon": 1e-3}),
    ],
    ids=str,
)
def test_a_new_sampler_with_other_numbers_compiles_nothing(name, numbers, compiled):
    target = compiled(name)
    before = target.calls
    fit(target, SAMPLERS[name](**numbers))
    assert target.calls == before


@pytest.mark.filterwarnings("ignore:the run has not converged")  # two steps do not meet a tolerance
@pytest.mark.parametrize(
    "change",
    [
        {"data": jnp.ones(D)},
        {"particles": jnp.ones((N, D)) * jnp.arange(1.0, N + 1)[:, None]},
        {"seed": 5},
        {"num_steps": 300},
        {"record_every": 7},
        {"tolerance": 1e-3},
        {"callback": lambda step, state, info: None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_fit_that_differs_in_values_alone_compiles_nothing(change, compiled):
    target = compiled("svgd")
    before = target.calls
    fit(target, SAMPLERS["svgd"](), **change)
    assert target.calls == before


def test_going_on_from_a_result_compiles_nothing(compiled):
    target = compiled("svgd")
    result = fit(target, SAMPLERS["svgd"]())
    before = target.calls
    fit(target, SAMPLERS["svgd"](), particles=result)
    assert target.calls == before


def test_new_data_are_the_data_that_are_used(compiled):
    target, sampler, data = compiled("svgd"), SAMPLERS["svgd"](), 5.0 * jnp.ones(D)
    again = fit(target, sampler, data=data, num_steps=20)
    afresh = fit(Counted(), sampler, data=data, num_steps=20)
    np.testing.assert_allclose(again.particles, afresh.particles, rtol=1e-10)  # compiled anew
    assert not np.allclose(again.particles, fit(target, sampler, num_steps=20).particles, rtol=1e-3)


def counted_gradients(counter: Counter):
    """A standard normal log density that counts, while it runs, how often its gradient is evaluated."""

    @jax.custom_vjp
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    def backward(x, cotangent):
        jax.debug.callback(lambda: counter.update(["call"]))  # with no argument: once for a batch
        jax.debug.callback(lambda x: counter.update(["gradient"]), x)  # once for every row
        return (-cotangent * x,)

    log_density.defvjp(lambda x: (log_density(x), x), backward)
    return log_density


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (sk.svgd(sk.RBF(1.0)), N),
        (sk.svgd(sk.Graphical.coordinatewise(sk.RBF(1.0), D)), N),
        (sk.matrix_svgd("average", sk.GaussNewton(lambda x: x), sk.RBF(1.0)), N),
        (sk.matrix_svgd("mixture", sk.GaussNewton(lambda x: x), sk.RBF(1.0)), N),
        (sk.svn(sk.GaussNewton(lambda x: x), sk.RBF(1.0)), N),
        (sk.gradient_free_svgd(lambda x: -jnp.sum(x**2), sk.RBF(1.0)), 0),
        (sk.sgld(0.01), N),
        (sk.psgld(0.01), N),
    ],
    ids=["svgd", "graphical", "average", "mixture", "svn", "gradient-free", "sgld", "psgld"],
)
def test_scores_are_evaluated_once_a_particle_in_one_batched_call_a_step(sampler, expected, key):
    counter = Counter()
    points = jr.normal(key, (N, D))
    target = sk.LogDensity(counted_gradients(counter)).bind(points[0])
    state = sampler.init(target, points)
    step = jax.jit(lambda key, state: sampler.step(key, state, target))
    for _ in range(3):
        state, _ = step(key, state)
    jax.effects_barrier()
    assert counter["gradient"] == 3 * expected
    assert counter["call"] == (3 if expected else 0)


# How many programs there are, in a process that has compiled nothing yet.

COUNTING = """
import json, sys, tempfile, warnings
import jax, jax.numpy as jnp, numpy as np
import steinkern as sk

warnings.simplefilter("ignore")
names = []


def listen(event, seconds, fun_name="?", **_):
    if event == "/jax/core/compile/backend_compile_duration":
        names.append(fun_name)


jax.monitoring.register_event_duration_secs_listener(listen)
keys = [jax.random.key(seed) for seed in range(3)]  # the caller's own
counts = {}


def count(name, call):
    del names[:]
    result = call()
    counts[name] = list(names)
    return result


def bent(x):
    return -(x[0] ** 2) / 8 - (x[1] - x[0] ** 2 / 4) ** 2


def round_one(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)

"""
SAMPLING = """
count("first", lambda: sk.sample(keys[0], bent, np.zeros(2)))
count("second", lambda: sk.sample(keys[1], bent, np.zeros(2)))
result = count("new density", lambda: sk.sample(keys[2], round_one, np.zeros(2)))
"""
WITH_A_MODEL = """
import numpyro
from numpyro import distributions as dist
from steinkern.interop.numpyro import from_model

effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(scale):
    def model():
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfCauchy(scale))
        with numpyro.plate("schools", 8):
            unit = numpyro.sample("unit", dist.Normal(0, 1))
            numpyro.sample("effect", dist.Normal(mean + spread * unit, errors), obs=effects)

    return model


targets = [from_model(schools(scale)) for scale in (5.0, 4.0)]
count("first", lambda: sk.sample(keys[0], targets[0]))
count("second", lambda: sk.sample(keys[1], targets[0]))
result = count("new density", lambda: sk.sample(keys[2], targets[1]))
"""
FITTING = """
sampler = sk.svgd() if sys.argv[1] == "vanilla" else sk.matrix_svgd(sys.argv[1], sk.Hessian())
start = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
count("first", lambda: sk.fit(keys[0], bent, sampler, start, num_steps=150))
count("second", lambda: sk.fit(keys[1], bent, sampler, start, num_steps=150))
result = count("new density", lambda: sk.fit(keys[2], round_one, sampler, start, num_steps=150))
"""
AFTERWARDS = """
count("report", lambda: result.report(tempfile.mkdtemp()))
count("summary", lambda: result.summary())
count("scores", lambda: result.scores())
points, scores = np.asarray(result.points), np.asarray(result.scores())
count("ksd2", lambda: sk.ksd2(points, scores))
count("mmd2", lambda: sk.mmd2(points, scores))
count("predict", lambda: result.predict(lambda x, row: jnp.sum(row), np.ones((3, 2), np.float32)))
"""


def programs_of(script: str, *arguments: str) -> dict[str, list[str]]:
    printed = output_of("-c", COUNTING + script + AFTERWARDS + "print(json.dumps(counts))", *arguments)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "arguments", "first", "new_density"),
    [
        (SAMPLING, [], 8, 5),
        (WITH_A_MODEL, [], 8, 5),
        *[(FITTING, [name], 5, 4) for name in ("vanilla", "average", "mixture")],
    ],
    ids=["sample a function", "sample a model of NumPyro", "vanilla", "average", "mixture"],
)
def test_a_call_compiles_a_handful_of_programs_and_a_second_call_none(script, arguments, first, new_density):
    if script is WITH_A_MODEL:
        pytest.importorskip("numpyro")
    counts = programs_of(script, *arguments)
    assert len(counts["first"]) <= first, counts
    assert counts["second"] == [], counts
    assert len(counts["new density"]) <= new_density, counts
    assert len(counts["report"]) <= 3, counts
    assert counts["summary"] == [], counts
    assert max(len(counts[name]) for name in ("scores", "ksd2", "mmd2", "predict")) <= 1, counts


# What a program holds.


def inside(jaxpr):
    """Every jaxpr in `jaxpr`, itself included, with the constants it carries."""
    closed = isinstance(jaxpr, core.ClosedJaxpr)
    own = jaxpr.jaxpr if closed else jaxpr
    yield own, jaxpr.consts if closed else []
    for equation in own.eqns:
        for value in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from inside(value)


def _is_jaxpr(value) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def shapes_in(jaxpr) -> set[tuple[int, ...]]:
    return {
        tuple(variable.aval.shape)
        for own, _ in inside(jaxpr)
        for equation in own.eqns
        for variable in equation.outvars
        if hasattr(variable.aval, "shape")
    }


def largest_constant(jaxpr) -> int:
    literals = [
        variable.val
        for own, _ in inside(jaxpr)
        for equation in own.eqns
        for variable in equation.invars
        if isinstance(variable, core.Literal)
    ]
    constants = [value for _, consts in inside(jaxpr) for value in consts]
    return max(np.size(value) for value in [*literals, *constants, 0])


def log_prior(x):
    return -0.5 * jnp.sum(x**2)


def log_likelihood(x, example):
    return -0.5 * (example - jnp.sum(x)) ** 2


STEPPING = {
    "svgd": sk.svgd(),
    "average": sk.matrix_svgd("average", sk.Hessian()),
    "mixture": sk.matrix_svgd("mixture", sk.Hessian()),
    "psgld": sk.psgld(0.01, correction=True),
}


def jaxpr_of_step(sampler, target, points, data=None):
    target = target.bind(points[0])
    state = sampler.init(target, points, data)
    return eqx.filter_make_jaxpr(type(sampler).step)(sampler, jr.key(0), state, target, data)[0]


@pytest.mark.parametrize("name", STEPPING)
def test_data_are_arguments_of_a_step_and_not_constants(name):
    data, points = jnp.arange(1000.0), jnp.ones((N, D))
    target = sk.Posterior(log_prior, log_likelihood, 1000)
    assert largest_constant(jaxpr_of_step(STEPPING[name], target, points, data)) < 100

    def closed_over(x):
        return jnp.sum(jax.vmap(lambda example: log_likelihood(x, example))(data))

    assert largest_constant(jaxpr_of_step(STEPPING[name], sk.LogDensity(closed_over), points)) == 1000


@pytest.mark.parametrize("kernel", [None, sk.IMQ()], ids=["rbf", "imq"])
def test_mixture_step_holds_no_vector_and_no_matrix_for_a_pair_of_particles(kernel):
    l, n, d = 5, 7, 11  # primes: a shape says what it counts
    sampler = sk.matrix_svgd("mixture", sk.Hessian(), kernel, anchors=l)
    shapes = shapes_in(jaxpr_of_step(sampler, sk.LogDensity(log_prior), jnp.ones((n, d))))
    assert (l, n, n) in shapes  # the distances in every anchor's metric: the search does look inside
    assert not [shape for shape in shapes if shape.count(n) > 1 and d in shape]
    assert max(np.prod(shape) for shape in shapes) < l * n * n * d


@pytest.mark.parametrize("name", ["svgd", "average"])
def test_step_holds_no_vector_and_no_matrix_for_a_pair_of_particles(name):
    n, d = 7, 11
    shapes = shapes_in(jaxpr_of_step(STEPPING[name], sk.LogDensity(log_prior), jnp.ones((n, d))))
    assert (n, n) in shapes
    assert not [shape for shape in shapes if shape.count(n) > 1 and d in shape]
