"""A run is known by what it computes: other programs are told apart, the same one is known again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.program_digest import ProgramHasher
from steinkern.inference import resume
from steinkern.inference.loop import first_loop
from steinkern.inference.run import Run
from steinkern.targets.target import as_target
from tests.run_cases import CASES, STARTS, RunCase, gaussian


def digests(target, sampler=None, tempering=None, particles=STARTS, data=None, batch_size=None) -> dict[str, str]:
    """The digests of a run as `fit` makes it; nothing is compiled."""
    sampler = sk.svgd() if sampler is None else sampler
    bound = as_target(target).bind(particles[0])
    step, points = jnp.zeros((), jnp.int32), jax.ShapeDtypeStruct(particles.shape, particles.dtype)
    loop = eqx.filter_eval_shape(first_loop, sampler, bound, points, bound.batch(data, batch_size), step)
    options = {"record_every": 1, "record_particles": False, "tolerance": None, "longest_move": 100.0}
    run = Run(jr.key(0), sampler, bound, tempering, data, batch_size, **options, loop=loop._replace(step=step), first=0)
    return run.digests(ProgramHasher())


TRACED = [case for case in CASES if not case.name.startswith("combine")]


def check_digests(case: RunCase) -> None:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        before, again, now = (digests(**make()) for make in (case.before, case.before, case.now))
    assert before == again
    assert (before == now) == case.same
    if not case.same:
        assert next(part for part in resume._PARTS if before.get(part) != now.get(part)) == case.part


@pytest.mark.every(2)
@pytest.mark.parametrize("case", [case for case in TRACED if case.quick], ids=lambda case: case.name)
def test_another_program_is_told_apart_and_the_same_is_not(case):
    check_digests(case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [case for case in TRACED if not case.quick], ids=lambda case: case.name)
def test_every_other_program_is_told_apart_and_the_same_is_not(case):
    check_digests(case)


def fit(directory, options, num_steps=2, **changes):
    arguments = {"sampler": sk.svgd(), "particles": STARTS, **options, **changes}
    return sk.fit(jr.key(0), **arguments, num_steps=num_steps, checkpoint=directory)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")
def test_a_checkpoint_of_another_run_is_refused_and_one_of_the_same_is_not(case, tmp_path):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        fit(tmp_path, case.before())
        if case.same:
            assert fit(tmp_path, case.now(), 3).num_steps >= 3
        else:
            with pytest.raises(ValueError, match=r"`checkpoint` .* is of another run: its "):
                fit(tmp_path, case.now(), 3)


IN_ANOTHER_PROCESS = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
from tests.core.test_program_digest import TRACED, digests
from tests.samplers.test_sampler_contract import SAMPLERS, bent
runs = {case.name: case.before for case in TRACED[::4]}
runs |= {case.name: lambda case=case: {"target": bent, "sampler": case.make(4, 2)} for case in SAMPLERS}
names = list(runs)[:: int(sys.argv[1])]
print(json.dumps({name: digests(**runs[name]()) for name in names}))
"""


@pytest.mark.thorough
def test_digests_are_those_of_another_process_that_traced_in_another_order():
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    found = []
    for seed, order in (("1", "1"), ("2", "-1")):
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, order]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=root)
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    assert len(found[0]) > len(TRACED) // 4
    assert found[0] == found[1]


@pytest.mark.thorough
def test_a_combined_result_is_known_by_its_particles(tmp_path):
    # The first eight particles, whose log densities are compared as well, are the same in both.
    starts = np.random.default_rng(0).normal(size=(3, 9, 2))
    results = [sk.fit(jr.key(0), gaussian, sk.svgd(), start, num_steps=1) for start in starts]
    fit(tmp_path, {"target": gaussian, "particles": sk.combine(results[:2])})
    with pytest.raises(ValueError, match="is of another run: its first particles is"):
        fit(tmp_path, {"target": gaussian, "particles": sk.combine(results[::2])}, 3)
    assert fit(tmp_path, {"target": gaussian, "particles": sk.combine(results[:2])}, 3).num_steps == 4


# Programs.


def scanned(x, scale):
    return jax.lax.scan(lambda total, row: (total + scale * row, None), 0.0 * x[0], x)[0]


def looped(x, scale):
    return jax.lax.while_loop(lambda pair: pair[0] < scale, lambda pair: (pair[0] + 1.0, 2.0 * pair[1]), (0.0, x))


def in_a_kernel(x, scale, name="kernel"):
    from jax.experimental import pallas as pl

    def kernel(source, out):
        out[...] = source[...] + 1.0
        out[...] = scale * out[...]

    spec = pl.BlockSpec(x.shape, lambda i: (i, 0))
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out, grid=(1,), in_specs=[spec], out_specs=spec, name=name)(x)


def on_devices(x, scale):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("some",))
    rows = jax.sharding.PartitionSpec("some")
    return jax.shard_map(lambda part: jax.lax.psum(scale * part, "some"), mesh=mesh, in_specs=rows, out_specs=rows,
                         check_vma=False)(x)  # fmt: skip


def referred(x, scale):
    reference = jax.new_ref(x)
    reference[0, 0] = scale
    reference[...] *= 2.0
    return reference[...]


def drawn(x, scale):
    return x * jr.gamma(jr.key(0), scale, x.shape, x.dtype)


def solved(x, scale):
    return jax.scipy.sparse.linalg.cg(lambda v: scale * v + x.T @ (x @ v), x[0])[0]


def reduced(x, scale):
    return jax.lax.reduce(x, 0.0 * x[0, 0], lambda a, b: a + scale * b, (0,))


PROGRAMS = {
    "scan": scanned,
    "while": looped,
    "cond": lambda x, scale: jax.lax.cond(x[0, 0] > 0, lambda x: scale * x, jnp.sin, x),
    "checkpoint": jax.grad(lambda x, scale: jnp.sum(jax.checkpoint(lambda x: jnp.sin(scale * x))(x))),
    "pallas_call": in_a_kernel,
    "shard_map": on_devices,
    "references": referred,
    "random": drawn,
    "custom_linear_solve": solved,
    "reduce": reduced,
    "constant": lambda x, scale: x @ np.array([[scale, 0.0], [1.0, 1.0]]),
    "bfloat16": lambda x, scale: x.astype(jnp.bfloat16) * np.array([scale, 1.0], jnp.bfloat16)[None],
    "parameter": lambda x, scale: jnp.roll(x, int(scale)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_deep_inside_a_program_is_seen(name):
    def digest(scale):
        programs = ProgramHasher()
        found = programs.digest(lambda x: PROGRAMS[name](x, scale), (), (jnp.ones((3, 2)),))
        assert not programs.unknown
        return found

    assert digest(2.0) == digest(2.0) != digest(3.0)


def test_names_are_not_seen_and_the_order_of_writes_is():
    def digest(function):
        return ProgramHasher().digest(function, (), (jnp.ones((3, 2)),))

    assert digest(lambda x: in_a_kernel(x, 2.0)) == digest(lambda y: in_a_kernel(y, 2.0, "another"))

    def written(x, values):
        reference = jax.new_ref(x)
        for value in values:
            reference[...] += value
            reference[...] *= value
        return reference[...]

    assert digest(lambda x: written(x, (2.0, 3.0))) != digest(lambda x: written(x, (3.0, 2.0)))


def test_constants_are_known_by_their_values_and_inputs_by_their_shapes():
    def digest(constant, given):
        return ProgramHasher().digest(lambda a, b: {"sum": a + b, "none": None}, (constant,), (given,))

    one, two = np.ones(2), np.full(2, 2.0)
    assert digest(one, one) == digest(jnp.ones(2), two) != digest(two, one)
    assert digest(one, one) == digest(one, jax.ShapeDtypeStruct((2,), one.dtype)) != digest(one, one[:1])


def test_a_large_constant_is_read_once(monkeypatch):
    read_ = []

    def as_numpy(value):
        read_.append(np.size(value))
        return np.asarray(value)

    monkeypatch.setattr("steinkern.core.program_digest.as_numpy", as_numpy)
    rows = np.ones((500, 2))
    digests(lambda x: -jnp.sum((rows @ x) ** 2), sk.matrix_svgd("average", sk.Hessian()))
    assert read_.count(1000) == 1


def test_digests_compile_nothing():
    compiled = []

    def listen(event, seconds, **_):
        if "compile" in event and "trace" not in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        digests(lambda x: -jnp.sum(jnp.cosh(x)), sk.matrix_svgd("mixture", sk.Hessian()))
        assert not compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
