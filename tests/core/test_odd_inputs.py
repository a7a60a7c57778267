"""Whatever is given, the answer is right or the argument is named: public functions against kinds of odd inputs."""

import re

import jax
import numpy as np
import pytest

from tests.helpers.odd_inputs import (
    ARRAYS,
    EITHER,
    HALVES,
    NO_ANSWER,
    NO_NUMBERS,
    NUMBERS,
    SAME_NUMBERS,
    SHAPES,
    SLOW_ARRAYS,
    leaves,
)

# Without the type checker that other tests run under: it would refuse much of this first, in other words.
pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("as_installed")]

KINDS = {**SAME_NUMBERS, **NO_ANSWER, **EITHER, **SHAPES}


def names(error: BaseException, argument: str) -> bool:
    """Whether a refusal is one of ours: a plain error that names the argument, or the target that cannot take it."""
    said = re.findall(r"`[^`]*`", str(error))
    return type(error) in (ValueError, TypeError) and any(argument in name or "target" in name for name in said)


def answered(call, value):
    """The leaves of the answer, or what was raised in place of it."""
    try:
        return leaves(call(value)), None
    except Exception as error:
        return [], error


def check(edge: str, kind: str) -> None:
    argument, good, call = {**ARRAYS, **SLOW_ARRAYS}[edge]
    if kind == "complex" and argument == "data":  # what a target makes of them is its own affair
        return
    odd = KINDS[kind](good)
    answer, refusal = answered(call, odd)
    if refusal is not None:
        assert names(refusal, argument), f"{type(refusal).__name__}: {refusal}"
        return
    assert kind not in NO_ANSWER or (edge, kind) == ("anchors", "None")  # where it means the particles
    if kind == "None":
        return
    other_draws = "initial" in edge and kind in ("list", "tuple", "float16")
    if kind in SHAPES or other_draws:  # another problem, which has an answer of its own
        assert all(np.isfinite(leaf).all() for leaf in answer)
        return
    plain = np.asarray(odd).real.astype(np.float64)
    tolerance = 2e-2 if kind == "float16" else 1e-6
    for ours, theirs in zip(answer, leaves(call(plain)), strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("edge", ARRAYS)
def test_every_odd_array_is_taken_right_or_refused_by_name(edge):
    wrong = []
    for kind in KINDS:
        try:
            check(edge, kind)
        except AssertionError as error:
            wrong.append(f"{kind}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("edge", SLOW_ARRAYS)
@pytest.mark.parametrize("kind", ["int64", "big-endian", *NO_ANSWER, "complex", "ragged"])
def test_sample_takes_odd_arrays_right_or_refuses_them(edge, kind):
    if edge == "start of sample" and kind in ("None", "ragged"):  # says that it is missing; is a pytree
        return
    check(edge, kind)


def test_a_number_of_any_make_is_the_same_number():
    """Of Python, NumPy or JAX, in any precision and byte order."""
    for edge, (_, call) in NUMBERS.items():
        for kind, value in HALVES.items():
            assert float(call(value)) == pytest.approx(0.5), f"{edge}: {kind}"


@pytest.mark.parametrize("edge", NUMBERS)
def test_what_is_no_number_is_refused_by_name(edge):
    argument, call = NUMBERS[edge]
    for kind, value in NO_NUMBERS.items():
        with pytest.raises(ValueError, match=f"`{argument}`") as raised:
            call(value)
        assert raised.type is ValueError, kind


TRACEABLE = [
    "points of ksd2",
    "scores of the Stein ratio",
    "center of initial",
]


@pytest.mark.parametrize("edge", TRACEABLE)
def test_a_traced_array_gives_the_same_answer(edge):
    _, good, call = ARRAYS[edge]
    for ours, theirs in zip(leaves(jax.jit(call)(good)), leaves(call(good)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("edge", ["particles of fit", "data of fit", "start of a mode", "start of sample"])
def test_a_function_with_a_loop_of_its_own_says_that_it_cannot_be_traced(edge):
    argument, good, call = {**ARRAYS, **SLOW_ARRAYS}[edge]
    with pytest.raises(ValueError, match="`jit`"):
        jax.jit(call)(good)
    with pytest.raises(ValueError, match=f"`{argument}.*traced|`{argument}.*`jit`"):
        jax.vmap(call)(np.stack([good, good]))
