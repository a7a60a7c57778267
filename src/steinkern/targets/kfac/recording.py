"""Runs a model with a tap (an added zero) at every use of a layer's weights, and records the inputs of all uses."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from ...core._xla import convolves_by_patches
from ...core.types import PyTree
from .factors import LayerRecord
from .uses import Layer, Program, Scan, Use, Uses


class TappedModel:
    """A model as a function of its parameters' leaves, an example, and taps that are added to the uses' results.

    Args:
        function: from the leaves and one example to the output, a vector.
        leaves: the leaves of the parameters; only their shapes and types are used.
        example: one example; only its shapes and types are used.
        layers: the layers whose uses get taps.
    """

    def __init__(self, function: Any, leaves: list[Array], example: PyTree, layers: list[Layer]):
        self.uses = Uses(jax.make_jaxpr(function)(leaves, example), layers)

    def idle_taps(self) -> list[Array]:
        """The taps of all uses, which are zeros."""
        return [use.idle_tap() for use in self.uses.ordered]

    def __call__(self, leaves: list[Array], example: PyTree, taps: list[Array]) -> tuple[Array, list[Array]]:
        """The output, and the inputs of every use."""
        arguments = [*leaves, *jax.tree_util.tree_leaves(example)]
        (output,), inputs = _evaluate(self.uses.program, arguments, iter(taps))
        return output, inputs

    def record(self, leaf: int, inputs: list[Array], gradients: list[Array]) -> LayerRecord:
        """The inputs and the gradients of all uses of one layer for one example, concatenated over positions.

        Args:
            leaf: the index of the layer's weights among the leaves.
            inputs: the inputs of all uses of all layers.
            gradients: the gradients in all taps, with a leading axis.
        """
        uses = zip(self.uses.ordered, inputs, gradients, strict=True)
        recorded = [(use, x, gradient) for use, x, gradient in uses if use.layer.leaf == leaf]
        rows = [x.reshape(-1, *x.shape[len(use.lengths) + 1 :]) for use, x, _ in recorded]  # scans' steps are positions
        if len({row.ndim for row in rows}) > 1:  # lookups, and products with the same weights
            size = next(row.shape[-1] for row in rows if row.ndim > 1)
            rows = [jax.nn.one_hot(row[:, None], size) if row.ndim == 1 else row for row in rows]
        rows = [row if row.ndim == 1 else row.astype(gradients[0].dtype) for row in rows]
        columns = [use.rows(gradient) for use, _, gradient in recorded]
        return LayerRecord(jnp.concatenate(rows), jnp.concatenate(columns, axis=1))


def _evaluate(program: Program, arguments: list[Any], taps: Iterator[Any]) -> tuple[list[Any], list[Any]]:
    """The results of a program, and the inputs of its uses; takes the next tap for each use."""
    jaxpr = program.jaxpr
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *arguments), strict=True))
    inputs: list[Any] = []

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation, step in zip(jaxpr.eqns, program.steps, strict=True):
        operands = [read(operand) for operand in equation.invars]
        more: list[Any] = []
        if isinstance(step, Program):
            results, more = _evaluate(step, operands, taps)
        elif isinstance(step, Scan):
            results, more = _evaluate_scan(equation, step, operands, taps)
        elif isinstance(step, Use):
            more = [step.inputs(*operands)]
            results = [_apply_weights(step, equation, operands, more[0]) + next(taps)]
        else:
            results = _apply(equation, operands)
        inputs += more
        values.update(zip(equation.outvars, results, strict=True))
    return [read(result) for result in jaxpr.outvars], inputs


def _apply_weights(use: Use, equation: Any, operands: list[Any], inputs: Array) -> Array:
    """The result of a use."""
    if use.result is not None and convolves_by_patches():
        return use.result(inputs, operands[1])
    return _apply(equation, operands)[0]


def _apply(equation: Any, operands: list[Any]) -> list[Any]:
    """The results of one equation."""
    parameters: Any = equation.primitive.get_bind_params(equation.params)
    functions: Any = ()
    if isinstance(parameters, tuple):  # by the version of JAX
        functions, parameters = parameters
    results = equation.primitive.bind(*functions, *operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def _evaluate_scan(equation: Any, step: Scan, operands: list[Any], taps: Iterator[Any]) -> tuple[list[Any], list[Any]]:
    """A scan whose body has taps: every step takes one slice of each tap, and the inputs are stacked."""
    first, last = step.num_consts, step.num_consts + step.num_carry
    constants, carried, scanned = operands[:first], operands[first:last], operands[last:]

    def body(carry: list[Any], slices: tuple[list[Any], list[Any]]) -> tuple[list[Any], Any]:
        rows, tapped = slices
        results, inputs = _evaluate(step.body, [*constants, *carry, *rows], iter(tapped))
        return results[: step.num_carry], (results[step.num_carry :], inputs)

    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    end, (stacked, inputs) = jax.lax.scan(body, carried, (scanned, list(islice(taps, step.num_uses))), **options)
    return [*end, *stacked], inputs
