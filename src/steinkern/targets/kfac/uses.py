"""Finds the equations of a model's jaxpr that use the weights of its layers, and evaluates it with taps at these uses.

In a jaxpr a mapped dimension of `vmap` is an axis of an array. Each use of a weight matrix is therefore one equation, a
product, a convolution or a lookup, whose other operand holds the inputs at all positions and whose result holds the
outputs at all positions. For uses in the body of a `scan`, its steps are a further axis. Other uses are refused.

A tap is an array of zeros that is added to the result of a use: the gradient in the tap is the gradient at the outputs.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from ...core._xla import convolves_by_patches
from .equations import READERS, Reading
from .factors import LayerRecord
from .rules import hint_for

# The primitives that call an inner jaxpr, by the name of the parameter that holds it; those that rearrange or cast
# entries; and sums.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr", "closed_call": "call_jaxpr"}
_LAYOUT = ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy")
_SUMS = ("add", "add_any")


class Layer(NamedTuple):
    """A layer's weights and bias, by the indices of their leaves in the parameters."""

    leaf: int
    name: str
    output_axis: int
    bias: int | None


class Weight(NamedTuple):
    """Marks a variable that is a layer's weights: its axis j is axis `axes[j]` of the leaf."""

    layer: Layer
    axes: tuple[int, ...]


class Bias(NamedTuple):
    """Marks a variable that is a layer's bias, broadcast or reshaped; `axis` numbers outputs, `None` if it is lost."""

    layer: Layer
    axis: int | None


class Product(NamedTuple):
    """Marks a variable that is the product of a layer's weights and inputs, before any other operation."""

    layer: Layer
    axis: int | None


Mark: TypeAlias = Weight | Bias | Product
Marks: TypeAlias = dict[Any, Mark]


class Use(NamedTuple):
    """One equation that applies a layer's weights at one or many positions.

    Args:
        layer: the layer whose weights are used.
        aval: the shape and dtype of the result.
        lengths: the lengths of the enclosing scans, outermost first.
        reading: the axes and inputs of the equation.
    """

    layer: Layer
    aval: Any
    lengths: tuple[int, ...]
    reading: Reading

    def rows(self, values: Array) -> Array:
        """Values shaped like the tap, with leading axes before it, as (..., positions, outputs)."""
        rank, axis = self.aval.ndim, self.reading.feature_axis
        last = jnp.moveaxis(values, values.ndim - rank + axis, -1)
        return last.reshape(*values.shape[: values.ndim - rank - len(self.lengths)], -1, self.aval.shape[axis])


Step: TypeAlias = Callable[[list[Any], Iterator[Array]], tuple[list[Any], list[Array]]]
"""Maps the operands of an equation to its results and the inputs of its uses; takes the next tap for each use."""


class Uses:
    """The uses of layers' weights in a model, found in one walk over its jaxpr.

    Args:
        closed: the model's closed jaxpr, whose first arguments are the leaves of the parameters.
        layers: the layers; `ValueError` for one whose weights are used in a way that cannot be followed.

    Attributes:
        run: maps the model's arguments and the taps of all uses to the model's results and the inputs of all uses.
        ordered: all uses, in the order of the program.
    """

    def __init__(self, closed: Any, layers: list[Layer]):
        self.ordered: list[Use] = []
        self._bias_uses: Counter[int] = Counter()
        self._layers_with_other_uses: set[int] = set()
        marks = _mark_arguments(closed.jaxpr, layers)
        self.run = self._walk(closed.jaxpr, closed.consts, marks, ())
        self._note_other_uses(_marks_of(closed.jaxpr.outvars, marks), "the model returns it")
        for layer in layers:
            groups = {use.reading.groups for use in self._uses_of(layer)}
            if not groups:
                raise _refusal(layer, "the model never uses it")
            if len(groups) > 1:
                raise _refusal(layer, "the model uses it with several numbers of groups")

    def adds_bias(self, layer: Layer) -> bool:
        """Whether the bias is added once to every product, before any other operation."""
        if layer.bias is None or layer.leaf in self._layers_with_other_uses:
            return False
        uses = self._uses_of(layer)
        return self._bias_uses[layer.leaf] == len(uses) and all(use.reading.groups == 1 for use in uses)

    def zero_taps(self) -> list[Array]:
        """The taps of all uses."""
        return [jnp.zeros((*use.lengths, *use.aval.shape), use.aval.dtype) for use in self.ordered]

    def record(self, leaf: int, inputs: list[Array], gradients: list[Array]) -> LayerRecord:
        """The inputs and the gradients of all uses of one layer for one example, concatenated over positions.

        Args:
            leaf: the index of the layer's weights among the leaves.
            inputs: the inputs of all uses of all layers.
            gradients: the gradients in all taps, with a leading axis.
        """
        uses = zip(self.ordered, inputs, gradients, strict=True)
        recorded = [(use, x, gradient) for use, x, gradient in uses if use.layer.leaf == leaf]
        rows = [x.reshape(-1, *x.shape[len(use.lengths) + 1 :]) for use, x, _ in recorded]  # scans' steps are positions
        if len({row.ndim for row in rows}) > 1:  # lookups, and products with the same weights
            size = next(row.shape[-1] for row in rows if row.ndim > 1)
            rows = [jax.nn.one_hot(row[:, None], size) if row.ndim == 1 else row for row in rows]
        rows = [row if row.ndim == 1 else row.astype(gradients[0].dtype) for row in rows]
        columns = [use.rows(gradient) for use, _, gradient in recorded]
        return LayerRecord(jnp.concatenate(rows), jnp.concatenate(columns, axis=1))

    def _uses_of(self, layer: Layer) -> list[Use]:
        return [use for use in self.ordered if use.layer == layer]

    def _walk(self, jaxpr: Any, consts: Any, marks: Marks, lengths: tuple[int, ...]) -> Step:
        """The evaluation of a jaxpr inside scans of these lengths; adds the marks of all its variables to `marks`."""
        steps = []
        for equation in jaxpr.eqns:
            operands = _marks_of(equation.invars, marks)
            steps.append(self._step(equation, operands, marks, lengths) if any(operands) else _plain_step(equation))

        def run(arguments: list[Any], taps: Iterator[Array]) -> tuple[list[Any], list[Array]]:
            values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
            inputs: list[Array] = []

            def read(variable: Any) -> Any:
                return variable.val if isinstance(variable, Literal) else values[variable]

            for equation, step in zip(jaxpr.eqns, steps, strict=True):
                results, more = step([read(operand) for operand in equation.invars], taps)
                inputs += more
                values.update(zip(equation.outvars, results, strict=True))
            return [read(result) for result in jaxpr.outvars], inputs

        return run

    def _step(self, equation: Any, operands: list[Mark | None], marks: Marks, lengths: tuple[int, ...]) -> Step:
        """The evaluation of an equation some of whose operands are marked; marks its results."""
        name = equation.primitive.name
        if name in _CALLS:
            inner, consts = _split_jaxpr(equation.params[_CALLS[name]])
            inner_marks = _pair_marks(inner.invars, operands)
            run = self._walk(inner, consts, inner_marks, lengths)
            marks.update(_pair_marks(equation.outvars, _marks_of(inner.outvars, inner_marks)))
            return run
        if name == "scan":
            return self._scan(equation, operands, lengths)
        index = next((i for i, mark in enumerate(operands) if isinstance(mark, Weight)), None)
        if index is not None:
            return self._weight_step(equation, index, operands, marks, lengths)
        mark = operands[0]
        layer = _layer_of_sum(operands) if name in _SUMS else None
        if name in _LAYOUT and isinstance(mark, Bias | Product):
            marks[equation.outvars[0]] = mark._replace(axis=_moved_axis(equation, mark.axis))
        elif layer is not None:
            self._bias_uses[layer.leaf] += 1
        else:
            self._note_other_uses(operands)
        return _plain_step(equation)

    def _scan(self, equation: Any, operands: list[Mark | None], lengths: tuple[int, ...]) -> Step:
        """A scan. Of its arguments, those that are the same at every step keep their marks in the body."""
        inner, consts = _split_jaxpr(equation.params["jaxpr"])
        num_consts, num_carry = _count_arguments(equation, inner)
        self._note_other_uses(operands[num_consts:], "the model scans over it, or carries it through a scan")
        marks = _pair_marks(inner.invars[:num_consts], operands[:num_consts])
        before = len(self.ordered)
        body = self._walk(inner, consts, marks, (*lengths, equation.params["length"]))
        num_uses = len(self.ordered) - before
        self._note_other_uses(_marks_of(inner.outvars, marks), "the model returns it")
        options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}

        def run(arguments: list[Any], taps: Iterator[Array]) -> tuple[list[Any], list[Array]]:
            constants, scanned = arguments[:num_consts], arguments[num_consts + num_carry :]

            def step(carry: list[Any], slices: tuple[list[Any], list[Array]]) -> tuple[list[Any], Any]:
                row, tap_slices = slices  # every step takes one slice of each tap
                results, inputs = body([*constants, *carry, *row], iter(tap_slices))
                return results[:num_carry], (results[num_carry:], inputs)

            carried = arguments[num_consts : num_consts + num_carry]
            end, (stacked, inputs) = jax.lax.scan(step, carried, (scanned, list(islice(taps, num_uses))), **options)
            return [*end, *stacked], inputs

        return run

    def _weight_step(
        self, equation: Any, index: int, operands: list[Mark | None], marks: Marks, lengths: tuple[int, ...]
    ) -> Step:
        """The evaluation of an equation whose operand `index` is a layer's weights."""
        mark = operands[index]
        assert isinstance(mark, Weight)
        name, result, (layer, axes) = equation.primitive.name, equation.outvars[0], mark
        if name == "transpose":
            marks[result] = Weight(layer, tuple(axes[axis] for axis in equation.params["permutation"]))
            return _plain_step(equation)
        if name in ("convert_element_type", "copy"):
            marks[result] = mark
            return _plain_step(equation)
        if name not in READERS:
            raise _refusal(layer, f"the model uses it by the operation `{name}`")
        others = [*operands[:index], *operands[index + 1 :]]
        if any(isinstance(other, Weight) for other in others):
            raise _refusal(layer, "the model multiplies weights with weights")
        self._note_other_uses(others)
        reading = READERS[name](equation, index, axes, layer.output_axis)
        if not isinstance(reading, Reading):
            raise _refusal(layer, f"the model uses it by the operation `{name}`, {reading}")
        marks[result] = Product(layer, reading.feature_axis)
        self.ordered.append(Use(layer, result.aval, lengths, reading))

        def run(arguments: list[Any], taps: Iterator[Array]) -> tuple[list[Any], list[Array]]:
            inputs = reading.inputs(*arguments)
            if reading.result is not None and convolves_by_patches():
                output = reading.result(inputs, arguments[1])
            else:
                (output,) = _evaluate(equation, arguments)
            return [output + next(taps)], [inputs]

        return run

    def _note_other_uses(self, marks: list[Mark | None], reason: str = "") -> None:
        """Note layers whose bias or product is among these marks; refuse weights for this reason."""
        for mark in marks:
            if isinstance(mark, Weight):
                raise _refusal(mark.layer, reason)
            if mark is not None:
                self._layers_with_other_uses.add(mark.layer.leaf)


def _plain_step(equation: Any) -> Step:
    """The step of an equation without uses: it is evaluated as it is."""
    return lambda operands, taps: (_evaluate(equation, operands), [])


def _evaluate(equation: Any, operands: list[Any]) -> list[Any]:
    """The results of one equation."""
    parameters: Any = equation.primitive.get_bind_params(equation.params)
    functions: Any = ()
    if isinstance(parameters, tuple):  # by the version of JAX
        functions, parameters = parameters
    results = equation.primitive.bind(*functions, *operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def _mark_arguments(jaxpr: Any, layers: list[Layer]) -> Marks:
    """The marks of a model's arguments, which are the leaves of the parameters."""
    marks: Marks = {}
    for layer in layers:
        variable = jaxpr.invars[layer.leaf]
        shape = variable.aval.shape
        marks[variable] = Weight(layer, tuple(range(len(shape))))
        if layer.bias is not None:
            bias = jaxpr.invars[layer.bias]
            outputs = shape[layer.output_axis]
            axis = next((axis for axis, size in enumerate(bias.aval.shape) if size == outputs), None)
            marks[bias] = Bias(layer, axis)
    return marks


def _marks_of(variables: list[Any], marks: Marks) -> list[Mark | None]:
    """The mark of every variable."""
    return [None if isinstance(variable, Literal) else marks.get(variable) for variable in variables]


def _pair_marks(variables: list[Any], marks: list[Mark | None]) -> Marks:
    """The marks of those variables that have one."""
    return {variable: mark for variable, mark in zip(variables, marks, strict=True) if mark is not None}


def _split_jaxpr(jaxpr: Any) -> tuple[Any, Any]:
    """The jaxpr and the constants of a jaxpr, closed or not."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _moved_axis(equation: Any, axis: int | None) -> int | None:
    """Where an equation that moves entries puts an axis of its operand; `None` if it is lost."""
    name, parameters = equation.primitive.name, equation.params
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if axis is None:
        return None
    if name == "transpose":
        return parameters["permutation"].index(axis)
    if name == "broadcast_in_dim":
        return parameters["broadcast_dimensions"][axis]
    if before == after:
        return axis
    # Reshaped or squeezed: the axis of the same length with as many entries before it, if there is one.
    first = math.prod(before[:axis])
    return next((j for j in range(len(after)) if after[j] == before[axis] and math.prod(after[:j]) == first), None)


def _layer_of_sum(marks: list[Mark | None]) -> Layer | None:
    """The layer whose bias and product are the operands of a sum, with outputs along the same axis."""
    match marks:
        case [Bias(layer, axis), Product(other, other_axis)] | [Product(layer, axis), Bias(other, other_axis)]:
            return layer if layer == other and axis == other_axis and axis is not None else None
    return None


def _count_arguments(equation: Any, body: Any) -> tuple[int, int]:
    """The numbers of a scan's constant arguments and of its carried arguments.

    They are inferred from shapes, because JAX versions name these parameters differently: arrays that are scanned over
    or stacked have one more axis outside of the body.
    """

    def number_of_equal(outside: Any, inside: Any) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(one.aval.shape == other.aval.shape for one, other in pairs)

    num_carry = number_of_equal(equation.outvars, body.outvars)
    return number_of_equal(equation.invars, body.invars) - num_carry, num_carry


def _refusal(layer: Layer, reason: str) -> ValueError:
    return ValueError(
        f"`KFAC` cannot follow `{layer.name or 'the array'}`: {reason}. It follows products such as `weight @ x` and "
        f"`x @ weight.T`, convolutions and lookups, also in `vmap` and `scan`. {hint_for(layer.name)}"
    )
