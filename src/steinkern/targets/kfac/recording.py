"""Runs a model with a tap (an added zero) at every use of a layer's weights, and records the inputs of all uses."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from ...core.types import PyTree
from .factors import LayerRecord
from .uses import (
    Enter,
    Found,
    Layer,
    Loop,
    Marks,
    Use,
    find_uses,
    inner_marks,
    leave,
    mark_results,
    marks_of,
    marks_of_operands,
    step_of,
)


class TappedModel:
    """A model as a function of its parameters' leaves, an example, and taps that are added to the uses' results.

    Args:
        function: from the leaves and one example to the output, a vector.
        leaves: the leaves of the parameters; only their shapes and types are used.
        example: one example; only its shapes and types are used.
        layers: the layers whose uses get taps.
    """

    def __init__(self, function: Any, leaves: list[Array], example: PyTree, layers: list[Layer]):
        self.closed = jax.make_jaxpr(function)(leaves, example)
        self.layers = layers
        self.found: Found = find_uses(self.closed.jaxpr, layers)

    def idle_taps(self) -> list[Array]:
        """The taps of all uses, which are zeros."""
        return [use.idle_tap() for use in self.found.uses]

    def __call__(self, leaves: list[Array], example: PyTree, taps: list[Array]) -> tuple[Array, list[Array]]:
        """The output, and the inputs of every use."""
        marks = marks_of(self.closed.jaxpr, self.layers)
        arguments = [*leaves, *jax.tree_util.tree_leaves(example)]
        (output,), inputs = _evaluate(self.closed.jaxpr, self.closed.consts, arguments, marks, list(taps))
        return output, inputs

    def record(self, leaf: int, inputs: list[Array], gradients: list[Array]) -> LayerRecord:
        """The inputs and the gradients of all uses of one layer for one example, concatenated over positions.

        Args:
            leaf: the index of the layer's weights among the leaves.
            inputs: the inputs of all uses.
            gradients: the gradients in all taps, with a leading axis.
        """
        places = [i for i, use in enumerate(self.found.uses) if use.layer.leaf == leaf]
        uses = [self.found.uses[i] for i in places]
        rows = [_flat_inputs(use, inputs[i]) for use, i in zip(uses, places, strict=True)]
        if len({row.ndim for row in rows}) > 1:  # lookups, and products with the same weights
            size = next(row.shape[-1] for row in rows if row.ndim > 1)
            rows = [jax.nn.one_hot(row[:, None], size) if row.ndim == 1 else row for row in rows]
        rows = [row if row.ndim == 1 else row.astype(gradients[0].dtype) for row in rows]
        columns = [use.rows(gradients[i]) for use, i in zip(uses, places, strict=True)]
        return LayerRecord(jnp.concatenate(rows), jnp.concatenate(columns, axis=1))


def _flat_inputs(use: Use, inputs: Array) -> Array:
    """The inputs of a use with its positions and the steps of the scans around it on one axis."""
    inner = inputs.shape[len(use.lengths) + 1 :]
    return inputs.reshape(-1, *inner)


def _evaluate(
    jaxpr: Any, consts: Any, arguments: list[Any], marks: Marks, taps: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The results of a jaxpr, and the inputs of its uses; takes the taps of its uses from the front of `taps`."""
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
    inputs: list[Any] = []

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        operands = [read(operand) for operand in equation.invars]
        step, given = step_of(equation, marks), marks_of_operands(equation, marks)
        if isinstance(step, Enter):
            inner = inner_marks(step, given)
            results, found = _evaluate(step.jaxpr, step.consts, operands, inner, taps)
            leave(step, inner, equation, marks)
        elif isinstance(step, Loop):
            results, found = _evaluate_loop(equation, step, operands, inner_marks(step, given), taps)
        else:
            if isinstance(step, Use):
                rows = step.inputs(*operands)
                results, found = [_apply_weights(step, equation, operands, rows) + taps.pop(0)], [rows]
            else:
                results, found = _apply(equation, operands), []
        mark_results(equation, step, marks)
        inputs += found
        values.update(zip(equation.outvars, results, strict=True))
    return [read(result) for result in jaxpr.outvars], inputs


def _apply_weights(use: Use, equation: Any, operands: list[Any], rows: Array) -> Array:
    """The result of a use. On a GPU a convolution is a product of its patches, which are there as its inputs.

    The particles' filters are batched there, and cuDNN runs the gradients of such convolutions group by group: those of
    LeNet's second layer took 10 ms of an H200 for 10 particles, 128 images and 10 classes.
    """
    if use.result is None or not _multiplies_patches():
        return _apply(equation, operands)[0]
    return use.result(rows, operands[1])


def _multiplies_patches() -> bool:
    return jax.default_backend() == "gpu"


def _apply(equation: Any, operands: list[Any]) -> list[Any]:
    """The results of one equation."""
    parameters: Any = equation.primitive.get_bind_params(equation.params)
    functions: Any = ()
    if isinstance(parameters, tuple):  # by the version of JAX
        functions, parameters = parameters
    results = equation.primitive.bind(*functions, *operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def _evaluate_loop(
    equation: Any, step: Loop, operands: list[Any], inner: Marks, taps: list[Any]
) -> tuple[list[Any], list[Any]]:
    """A scan whose body has taps: every step takes one slice of each tap, and the inputs are stacked."""
    parameters = equation.params
    first, last = step.num_consts, step.num_consts + step.num_carry
    constants, carried, scanned = operands[:first], operands[first:last], operands[last:]
    number = _count_uses(step.jaxpr, dict(inner))
    own = [taps.pop(0) for _ in range(number)]

    def body(carry: list[Any], slices: tuple[list[Any], list[Any]]) -> tuple[list[Any], Any]:
        now, tapped = slices
        arguments = [*constants, *carry, *now]
        results, inputs = _evaluate(step.jaxpr, step.consts, arguments, dict(inner), list(tapped))
        return results[: step.num_carry], (results[step.num_carry :], inputs)

    end, (stacked, inputs) = jax.lax.scan(
        body,
        carried,
        (scanned, own),
        length=step.length,
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
    )
    return [*end, *stacked], inputs


def _count_uses(jaxpr: Any, marks: Marks) -> int:
    number = 0
    for equation in jaxpr.eqns:
        step = step_of(equation, marks)
        if isinstance(step, Enter | Loop):
            inner = inner_marks(step, marks_of_operands(equation, marks))
            number += _count_uses(step.jaxpr, inner)
            if isinstance(step, Enter):
                leave(step, inner, equation, marks)
        number += isinstance(step, Use)
        mark_results(equation, step, marks)
    return number
