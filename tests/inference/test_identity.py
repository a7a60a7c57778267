"""A run is known by what it computes: other runs are told apart, and the same one is known again in another process."""

import json

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import steinkern as sk
from steinkern.core.identity import differences, value_digest
from steinkern.inference.checkpoint import Checkpointer
from steinkern.inference.loop import Options
from steinkern.inference.prepare import prepare
from tests.helpers.processes import output_of
from tests.helpers.run_cases import CASES, STARTS

pytestmark = pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")


def identity(directory, target, sampler=None, particles=STARTS, data=None, batch_size=None, tempering=None):
    """The identity of a run as `fit` makes it, without its steps."""
    sampler = sk.svgd() if sampler is None else sampler
    options = Options(2, batch_size, 1, False, 0.0, tempering, 100.0)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        run, loop, evaluation, _ = prepare(jr.key(0), target, sampler, particles, data, None, options)
        return Checkpointer(directory, 1000, run, loop, evaluation, particles).identity


SAMPLE = [case for case in CASES if case.quick][::3]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case in SAMPLE else pytest.mark.soak) for case in CASES],
)
def test_another_run_is_told_apart_and_the_same_is_not(case, tmp_path):
    before = identity(tmp_path, **case.before())
    assert before == identity(tmp_path, **case.before())
    assert differences(before, identity(tmp_path, **case.now()))


IN_ANOTHER_PROCESS = """
import json, sys, tempfile
import jax
jax.config.update("jax_enable_x64", True)
from tests.inference.test_identity import CASES, hoisted, identity
directory = tempfile.mkdtemp()
runs = {case.name: case.before for case in CASES if case.quick} | {str(scale): hoisted(scale) for scale in (1.0, 2.0)}
print(json.dumps({name: identity(directory, **runs[name]()) for name in list(runs)[:: int(sys.argv[1])]}))
"""


def hoisted(scale: float):
    """A density that closes over an array of JAX, which JAX may keep beside the program, in a branch not yet taken."""

    def options():
        table = jnp.full((300, 2), scale)

        def far(x):
            return -scale_free(table, x)

        scale_free = jax.jit(lambda table, x: jnp.sum((table @ x) ** 2))
        return {"target": lambda x: jax.lax.cond(jnp.sum(x**2) > 100.0, far, lambda x: -0.5 * jnp.sum(x**2), x)}

    return options


BEFORE_0_11 = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="in this mode jax 0.9.2 raises on NumPy constants of a program"
)


@pytest.mark.thorough
@pytest.mark.parametrize("simplified", ["0", pytest.param("1", marks=BEFORE_0_11)])
def test_identities_are_those_of_another_process_that_traced_in_another_order(simplified):
    identities = []
    for seed, order in (("1", "1"), ("2", "-1")):
        environment = {"PYTHONHASHSEED": seed, "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": simplified}
        printed = output_of("-W", "ignore", "-c", IN_ANOTHER_PROCESS, order, **environment)
        identities.append(json.loads(printed.splitlines()[-1]))
    assert len(identities[0]) > 12
    assert identities[0] == identities[1]
    assert differences(identities[0]["1.0"], identities[0]["2.0"])


def test_on_a_gpu_values_may_differ_in_their_last_digits(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    values = jr.normal(jr.key(0), (20, 3))
    one = {"values": value_digest(values), "key": ["fry", [0, 1]]}
    assert not differences(one, {**one, "values": value_digest(values * (1 + 1e-6))})
    assert differences(one, {"values": value_digest(1.01 * values), "key": ["fry", [0, 2]]}) == ("values", "key")
