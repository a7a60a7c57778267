"""The benchmark command: what is selected, combined, written and kept. Nothing long is run."""

import math
from argparse import Namespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import cpu, densities, whole
from benchmarks.__main__ import NAMES, Record, load, selected
from benchmarks.bench import Answer, Benchmark, Row, in_processes, read


def test_all_ways_to_solve_with_a_covariance_are_one_density():
    u = jnp.linspace(-0.4, 0.5, densities.DIM)
    with jax.numpy_rank_promotion("allow"):
        values = {
            name: jax.value_and_grad(densities.DENSITIES[name])(u)
            for name in ("marginal", "lu", "qr", "slogdet_and_solve", "eigh")
        }
    value, gradient = values.pop("marginal")
    for name, (other, other_gradient) in values.items():
        assert float(other) == pytest.approx(float(value), rel=1e-10), name
        np.testing.assert_allclose(other_gradient, gradient, rtol=1e-8, err_msg=name)


@pytest.mark.parametrize("name", densities.DENSITIES)
def test_a_density_of_the_benchmark_is_finite_in_both_precisions(name):
    for x64 in (False, True):
        with jax.enable_x64(x64), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            value, gradient = jax.value_and_grad(densities.DENSITIES[name])(jnp.zeros(densities.DIM))
        assert value.dtype == (jnp.float64 if x64 else jnp.float32)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_pairs_and_each_once(name):
    pairs = load(name).pairs
    assert pairs
    assert len(set(pairs)) == len(pairs)


def test_pairs_are_selected_by_patterns_of_case_and_method():
    assert selected(load("whole"), ["k*", "lu"], ["n*"]) == [("lu", "nuts"), ("kalman", "nuts")]


def test_the_steps_of_a_fit_are_the_difference_of_two_calls():
    case = "vanilla 50x2"
    numbers = {"second_seconds": 1.5, "longer_seconds": 1.5 + 9 * 0.25}  # ten times the steps
    rows = [Row(case, "fit", metric, seconds) for metric, seconds in numbers.items()]
    found = {row.metric: row.mean for row in whole.compared(rows)}
    assert found == {"steps_seconds": pytest.approx(0.25), "over_steps": pytest.approx(6)}


def test_calls_are_compared_with_those_of_nuts_or_of_the_other_version():
    rows = [Row("lu", "sample", "first_seconds", 6.0), Row("lu", "nuts", "first_seconds", 2.0)]
    rows += [Row("lu", "sample-beside", "first_seconds", 5.0)]
    assert [(row.method, row.metric, row.mean) for row in whole.compared(rows)] == [
        ("sample", "first_over", 3.0),
        ("sample-beside", "first_over", 2.5),
    ]
    rows = [
        Row("vanilla 50x2", method, "second_seconds", value) for method, value in (("fit", 1.0), ("fit-beside", 2.0))
    ]
    assert [(row.method, row.metric, row.mean) for row in whole.compared(rows)] == [("fit", "second_over", 0.5)]


def test_steps_are_over_the_yardstick_and_their_growth_is_an_exponent():
    rows = [Row("n=50,d=2", "plain-fixed", "milliseconds", 2.0), Row("n=50,d=2", "fit", "milliseconds", 3.0)]
    rows += [Row(f"growth,n={n},d=50", "vanilla", "milliseconds", 1e-6 * n**2) for n in (4000, 8000, 16000)]
    found = {row[:3]: row.mean for row in cpu.compared(rows)}
    assert found["n=50,d=2", "fit", "ratio"] == 1.5
    assert found["n=4000..16000,d=50", "vanilla", "exponent"] == pytest.approx(2)


def test_a_file_keeps_the_rows_of_other_pairs_and_notes_of_its_own(tmp_path):
    benchmark = Benchmark([("a", "x"), ("b", "x")], lambda case, method, options: Answer([]))
    options = Namespace(json=tmp_path / "rows.json", precision="float32")
    for case, value in (("b", 1.0), ("a", math.nan), ("b", 2.0)):
        record = Record("test", benchmark, options)
        record.add((case, "x"), [Answer([Row(case, "x", "error", value)], ["a warning", {"jax": "1"}])])
    settings, rows = read(options.json)
    assert [row.case for row in rows] == ["a", "b"]
    assert np.isnan(rows[0].mean)
    assert rows[1].mean == 2.0
    assert settings["notes"] == {"a, x": ["a warning"], "b, x": ["a warning"]}
    assert settings["measured"] == {"x": {"jax": "1"}}


def test_jobs_that_fail_are_told_and_the_others_finish():
    def fail(core):
        raise RuntimeError("no such module")

    done = []
    failed = in_processes({"bad": fail, "good": lambda core: core}, 2, lambda name, core: done.append((name, core)))
    assert failed == {"bad": "no such module"}
    assert done[0][0] == "good"
    assert done[0][1] is not None  # a core of its own
