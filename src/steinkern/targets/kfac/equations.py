"""Reads the inputs at all positions from equations that apply weights: products, convolutions and lookups."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Reading(NamedTuple):
    """The axes and inputs of an equation that applies weights."""

    feature_axis: int
    """The axis of the result that numbers outputs; all others are positions."""
    groups: int
    """The number of groups of a convolution."""
    inputs: Callable[..., Array]
    """Maps the operands to the inputs, (positions, groups, inputs), or to the indices of a lookup, (positions,)."""
    result: Callable[[Array, Array], Array] | None = None
    """For a convolution, computes the result as a product of the inputs and the weights."""


Reader: TypeAlias = Callable[[Any, int, tuple[int, ...], int], Reading | str]
"""A function of an equation, the index of the weights among its operands, their axes and their output axis.

Returns a `Reading`, or the reason why there is none."""


def _input_axes(axes: tuple[int, ...], output_axis: int) -> tuple[int, ...]:
    """The axes of the leaf that number inputs."""
    return tuple(axis for axis in range(len(axes)) if axis != output_axis % len(axes))


def read_product(equation: Any, index: int, axes: tuple[int, ...], output_axis: int) -> Reading | str:
    """A `dot_general`: the free axes of its other operand are positions."""
    contracted, batched = equation.params["dimension_numbers"]
    if batched[index]:
        return "with a batch of weight matrices"
    pairs = zip(contracted[index], contracted[1 - index], strict=True)
    by_leaf_axis = {axes[axis]: input_axis for axis, input_axis in pairs}
    expected = _input_axes(axes, output_axis)
    if tuple(sorted(by_leaf_axis)) != expected:
        return f"summed over axes {tuple(sorted(by_leaf_axis))} instead of {expected}, as if outputs were inputs"
    order = [by_leaf_axis[axis] for axis in expected]

    def inputs(*operands: Array) -> Array:
        x = operands[1 - index]
        free = [axis for axis in range(x.ndim) if axis not in order]
        return jnp.transpose(x, (*free, *order)).reshape(-1, 1, int(np.prod([x.shape[axis] for axis in order])))

    last = len(equation.outvars[0].aval.shape) - 1
    return Reading(0 if index == 0 else last, 1, inputs)


def read_convolution(equation: Any, index: int, axes: tuple[int, ...], output_axis: int) -> Reading | str:
    """A convolution: the positions are those of the window, and the patches in it are the inputs."""
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    if index != 1 or parameters["batch_group_count"] != 1:
        return "in which the weights are not the filter for all examples"
    if axes[numbers.rhs_spec[0]] != output_axis % len(axes):
        return "whose output channels are not the layer's outputs"
    groups = parameters["feature_group_count"]
    # The filter's input channels and spatial axes, in the order of the leaf's axes.
    order = [numbers.rhs_spec.index(axes.index(axis)) - 1 for axis in _input_axes(axes, output_axis)]
    window = [equation.invars[1].aval.shape[axis] for axis in numbers.rhs_spec[2:]]
    out_sizes = [equation.outvars[0].aval.shape[axis] for axis in numbers.out_spec[2:]]
    # Positions in the order of the result's axes: 0 for the examples of the batch, 1 … for the spatial axes.
    position_order = np.argsort([numbers.out_spec[0], *numbers.out_spec[2:]])

    def inputs(x: Array, _: Array) -> Array:
        patches = _patches(jnp.transpose(x, numbers.lhs_spec), window, out_sizes, parameters)
        spatial = len(window)
        patches = patches.reshape(*patches.shape[: 1 + spatial], groups, -1, *window)
        first = 2 + spatial  # the channels of a group, after the positions and the groups
        moved = jnp.transpose(patches, (*position_order, 1 + spatial, *(first + axis for axis in order)))
        return moved.reshape(-1, groups, int(np.prod(moved.shape[first:])))

    shape, feature_axis = equation.outvars[0].aval.shape, numbers.out_spec[1]

    def result(rows: Array, weights: Array) -> Array:
        filters = jnp.transpose(weights, numbers.rhs_spec)
        filters = jnp.transpose(filters, (0, *(1 + axis for axis in order))).reshape(shape[feature_axis], -1)
        products = jnp.matmul(rows[:, 0], filters.T, precision=parameters["precision"])
        positions = [size for axis, size in enumerate(shape) if axis != feature_axis]
        return jnp.moveaxis(products.reshape(*positions, -1), -1, feature_axis)

    return Reading(feature_axis, groups, inputs, result if groups == 1 else None)


def _patches(x: Array, window: list[int], out_sizes: list[int], parameters: Any) -> Array:
    """From (examples, channels, *spatial) to (examples, *positions, channels, *window)."""
    padding = zip(parameters["padding"], parameters["lhs_dilation"], strict=True)
    edges = [(0, 0, 0), (0, 0, 0), *((low, high, dilation - 1) for (low, high), dilation in padding)]
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
    strides, dilations = parameters["window_strides"], parameters["rhs_dilation"]
    slices = []
    for offset in np.ndindex(*window):
        start = [int(step) * int(dilation) for step, dilation in zip(offset, dilations, strict=True)]
        stop = [a + (size - 1) * stride + 1 for a, size, stride in zip(start, out_sizes, strides, strict=True)]
        slices.append(jax.lax.slice(padded, (0, 0, *start), (*x.shape[:2], *stop), (1, 1, *strides)))
    patches = jnp.stack(slices, axis=-1)  # examples, channels, *positions, window
    patches = jnp.moveaxis(patches, 1, -2)
    return patches.reshape(*patches.shape[:-1], *window)


def read_gather(equation: Any, index: int, axes: tuple[int, ...], output_axis: int) -> Reading | str:
    """A `gather` of rows: the input is the index, which stands for a one-hot vector."""
    numbers, sizes = equation.params["dimension_numbers"], tuple(equation.params["slice_sizes"])
    problem = _row_problem(equation, index, axes, output_axis, sizes)
    if problem or numbers.operand_batching_dims or 0 not in numbers.start_index_map:
        return problem or "with indices that do not number rows"
    component, count = numbers.start_index_map.index(0), equation.invars[0].aval.shape[0]
    fills = equation.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP

    def inputs(_: Array, indices: Array) -> Array:
        rows = indices[..., component].reshape(-1)
        if fills:  # an index outside of the table is `count`, whose one-hot vector is zero
            return jnp.where((rows >= 0) & (rows < count), rows, count)
        return jnp.clip(rows, 0, count - 1)

    return Reading(numbers.offset_dims[-1], 1, inputs)


def read_slice(equation: Any, index: int, axes: tuple[int, ...], output_axis: int) -> Reading | str:
    """A `dynamic_slice` of one row, which is a lookup at one position."""
    problem = _row_problem(equation, index, axes, output_axis, tuple(equation.params["slice_sizes"]))
    if problem:
        return problem
    count = equation.invars[0].aval.shape[0]

    def inputs(_: Array, row: Array, *columns: Array) -> Array:
        return jnp.clip(row.reshape(1), 0, count - 1)

    return Reading(1, 1, inputs)


def _row_problem(
    equation: Any, index: int, axes: tuple[int, ...], output_axis: int, sizes: tuple[int, ...]
) -> str | None:
    shape = equation.invars[0].aval.shape
    if index != 0 or axes != (0, 1) or output_axis % len(axes) != 1 or sizes != (1, shape[1]):
        return "which does not take whole rows, or takes rows that are not inputs"
    return None


READERS: dict[str, Reader] = {
    "dot_general": read_product,
    "conv_general_dilated": read_convolution,
    "gather": read_gather,
    "dynamic_slice": read_slice,
}
