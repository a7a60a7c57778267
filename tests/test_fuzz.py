"""Fuzzing: whatever the numbers, a fit ends finite and of the right shape, or says why in known words; no traceback.

Shapes, samplers and targets come from a small fixed set, so that compiled programs are reused; numbers are free. The
ordinary run takes 25 cases of each kind, `make test-thorough` hundreds, and `make soak` goes through all combinations.
"""

import os
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import steinkern as sk
from tests.helpers.commands import check_words, run

FEW = 25  # cases of a kind in the ordinary run


def numbers_of_cases(thorough: int, soak: int | None = None, slow: str | None = None):
    """Parametrise a test over how many cases it takes, in the ordinary run and in longer ones."""
    ordinary = pytest.param(FEW, marks=[pytest.mark.slow(reason=slow)] if slow else [])
    longer = [pytest.param(thorough, marks=pytest.mark.thorough)]
    longer += [pytest.param(soak, marks=pytest.mark.soak)] if soak else []
    return pytest.mark.parametrize("examples", [ordinary, *longer])


def fuzz(check: Callable[..., Any], strategy: st.SearchStrategy[Any], examples: int) -> None:
    """Run `check` on so many cases, the same in every run."""

    @settings(
        max_examples=examples, derandomize=True, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(strategy)
    def run_case(case: Any) -> None:
        check(case)

    run_case()


# Fits.


def gaussian(x, data):
    return -0.5 * jnp.sum(((x - data[1]) / data[0]) ** 2)


def quartic(x, data):
    return -jnp.sum(((x - data[1]) / data[0]) ** 4)


def student(x, data):
    return -2.0 * jnp.log1p(jnp.sum(((x - data[1]) / data[0]) ** 2))


def walled(x, data):
    """NaN on one side."""
    return jnp.sum(jnp.log(data[1] - x)) - jnp.sum((x / data[0]) ** 2)


def log_prior(x):
    return -0.5 * jnp.sum(x**2)


def log_likelihood(x, row):
    return -0.5 * (row - jnp.sum(x)) ** 2


SGD = optax.sgd(0.1)
SAMPLERS = {
    "svgd": lambda number, d: sk.svgd(),
    "svgd, fixed": lambda number, d: sk.svgd(sk.RBF(number), SGD),
    "imq": lambda number, d: sk.svgd(sk.IMQ(number)),
    "linear": lambda number, d: sk.svgd(sk.kernels.Linear(number), SGD),
    "graphical": lambda number, d: sk.svgd(sk.Graphical.coordinatewise(sk.RBF(), d)),
    "average": lambda number, d: sk.matrix_svgd("average", sk.Hessian(), damping=number),
    "average, unrepaired": lambda number, d: sk.matrix_svgd("average", sk.Hessian(repair=None), optimizer=SGD),
    "mixture": lambda number, d: sk.matrix_svgd("mixture", sk.Hessian(), temperature=number),
    "mixture, diagonal": lambda number, d: sk.matrix_svgd(
        "mixture", sk.Hessian(diagonal=True), anchors=1, decay=0.9, refresh_every=2
    ),
    "svn": lambda number, d: sk.svn(sk.Hessian(), damping=number),
    "gradient-free": lambda number, d: sk.gradient_free_svgd(lambda x: -0.1 * jnp.sum(x**2)),
    "ensemble": lambda number, d: sk.ensemble(),
    "sgld": lambda number, d: sk.sgld(number),
    "psgld": lambda number, d: sk.psgld(number, correction=True),
}
TARGETS: dict[str, Any] = {"gaussian": gaussian, "quartic": quartic, "student": student, "walled": walled,
                           "posterior": None}  # fmt: skip
SHAPES = [(1, 1), (2, 3), (5, 2), (13, 4)]
PROGRAMS = list(product(SAMPLERS, TARGETS, SHAPES, ["float32", "float64"]))
# In the ordinary run: every target, shape and precision, and the samplers that differ most.
FEW_PROGRAMS = [
    ("svgd", "quartic", (5, 2), "float32"),
    ("svgd, fixed", "walled", (13, 4), "float64"),
    ("average", "gaussian", (5, 2), "float64"),
    ("average, unrepaired", "student", (2, 3), "float32"),
    ("mixture, diagonal", "posterior", (5, 2), "float32"),
    ("svn", "quartic", (1, 1), "float64"),
    ("gradient-free", "walled", (2, 3), "float64"),
    ("psgld", "posterior", (13, 4), "float64"),
]


class Case(NamedTuple):
    program: tuple[str, str, tuple[int, int], str]
    seed: int
    scale: float
    """Of the target."""
    start: float
    """Of the particles, relative to the target."""
    shift: float
    number: float
    """Of the sampler."""
    pattern: str
    num_steps: int
    options: dict[str, Any]


def powers_of_ten(least: int, most: int):
    return st.floats(least, most).map(lambda exponent: 10.0**exponent)


def cases(programs):
    return st.builds(
        Case,
        program=st.sampled_from(programs),
        seed=st.integers(0, 9),
        scale=st.one_of(powers_of_ten(-2, 2), powers_of_ten(-30, 30)),
        start=powers_of_ten(-6, 6),
        shift=st.sampled_from([0.0, 1.0, -1e3, 1e6]),
        number=st.one_of(powers_of_ten(-3, 1), powers_of_ten(-20, 20), st.sampled_from([0.0, -1.0, np.nan, np.inf])),
        pattern=st.sampled_from(["random", "equal", "two equal", "flat", "one far"]),
        num_steps=st.sampled_from([1, 3, 12]),
        options=st.fixed_dictionaries(
            {}, optional={"record_every": st.sampled_from([1, 2, 100, 0]), "tolerance": st.sampled_from([0.1, 2.0]),
                          "max_move": st.sampled_from([None, 1.0, -1.0])}
        ),
    )  # fmt: skip


def particles_of(case: Case) -> np.ndarray:
    _, _, (n, d), dtype = case.program
    points = case.scale * case.start * np.random.default_rng(case.seed).normal(size=(n, d)) + case.shift
    if case.pattern == "equal":
        points[:] = points[0]
    elif case.pattern == "two equal":
        points[-1] = points[0]
    elif case.pattern == "flat":
        points[:, 0] = 0.0
    elif case.pattern == "one far":
        points[0] *= 1e12
    with np.errstate(over="ignore"):
        return points.astype(dtype)


def refused(error: ValueError) -> str:
    assert type(error) is ValueError, error
    assert "`" in str(error), error  # it names an argument
    return "refused"


def check(case: Case) -> str:
    """Run a case; the outcome in a word. Any other exception than those known is the test's."""
    name, target, (n, d), dtype = case.program
    particles = particles_of(case)
    if target == "posterior":
        rows = np.linspace(-1, 1, 7).astype(dtype)
        arguments = {"target": sk.Posterior(log_prior, log_likelihood, 7), "data": rows, "batch_size": 3}
    else:
        with np.errstate(over="ignore"):
            arguments = {"target": TARGETS[target], "data": np.array([case.scale, case.shift]).astype(dtype)}
    try:
        result = sk.fit(
            jr.key(case.seed), sampler=SAMPLERS[name](case.number, d), particles=particles,
            num_steps=case.num_steps, throw=False, **arguments, **case.options,
        )  # fmt: skip
    except ValueError as error:
        return refused(error)
    assert result.points.shape == (n, d)
    assert result.points.dtype == dtype
    assert np.all(np.isfinite(result.points)), case
    assert result.status in sk.Status
    assert 0 <= result.num_steps <= case.num_steps
    assert len(result.history.step) == 0 or result.history.step[-1] == result.num_steps
    if result.status is sk.Status.DIVERGED:
        assert "Likely causes" in result.message.text
    return result.status.value


@pytest.mark.usefixtures("as_installed")
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
@numbers_of_cases(thorough=200, soak=2000, slow="25 fits of whatever can be asked for")
def test_a_fit_ends_finite_or_says_why(examples):
    fuzz(check, cases(FEW_PROGRAMS if examples < 2000 else PROGRAMS), examples)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "finished"),
        ({"scale": 1e-30}, "diverged"),
        ({"scale": 1e30}, "diverged"),
        ({"number": 0.0}, "refused"),
        # Beside the particle, where its gradient is compared with differences, the log density overflows.
        ({"program": ("ensemble", "walled", (1, 1), "float32"), "seed": 3, "scale": 2.4215190174365345e-25,
          "start": 0.22735198199691348, "shift": 1e6, "pattern": "flat", "num_steps": 1}, "diverged"),
    ],
    ids=["healthy", "tiny", "huge", "no bandwidth", "overflow beside"],
)  # fmt: skip
def test_fuzzing_would_see_the_outcomes_there_are(change, outcome):
    program = ("svgd, fixed", "gaussian", (5, 2), "float32")
    case = Case(program, 0, 1.0, 1.0, 0.0, 1.0, "random", 12, {})
    assert check(case._replace(**change)) == outcome


# The command line.

WORDS = st.one_of(
    st.sampled_from(
        ["--help", "--version", "0", "-1", "3", "--out", "nowhere", "1e9", "--", "sample", "report", "a.py:f",
         "--resume", "--restart", "--method", "--particles", "--steps", "--dim", "--seed", "p.npz", "--target",
         "--coordinates", "density.py:f", "density.py:g", "density.py:NUMBER",
         "density.py", "pipe", "pipe:f", "vanilla", "average", "x[0],y", ".", "", "-", "p.nc", "/dev/zero", "/dev/null",
         "99999999999999999999", "-0", "nan", "1e400", "\x1b[2J", "a\nb", "\ud800", "x" * 5000, "../" * 2000, "~"]
    ),
    st.text(max_size=8),
)  # fmt: skip
LINES = st.one_of(
    st.lists(WORDS, max_size=8),
    st.lists(WORDS, max_size=6).map(lambda words: ["sample", "density.py:f", "--dim", "2", *words]),
    st.lists(WORDS, max_size=3).map(lambda words: ["report", ".", *words]),
)


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """A directory with a file to sample from and a pipe; nothing runs, only the command line is looked at."""

    def refuse(*arguments, **options):
        raise ValueError("`--steps` runs nothing here.")

    monkeypatch.setattr("steinkern.cli.sampling.run", refuse)
    monkeypatch.setattr("steinkern.cli.target.Loaded.try_out", lambda self, particles: None)
    monkeypatch.chdir(tmp_path)
    density = "NUMBER = 3\ndef f(x):\n    return -(x**2).sum()\ndef g(a, b, c):\n    pass\n"
    (tmp_path / "density.py").write_text(density)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")


@pytest.mark.usefixtures("nothing_runs", "as_installed")
@numbers_of_cases(thorough=1000)
def test_any_arguments_of_the_command_line_are_taken_or_refused(examples):
    """Nothing but known errors, each in a line. Whether a program runs at all is not looked at here."""

    def check_command(words):
        with pytest.MonkeyPatch.context() as patch:
            check_words(*run(patch, words))

    fuzz(check_command, LINES, examples)
