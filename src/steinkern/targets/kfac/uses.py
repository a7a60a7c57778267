"""Finds the equations of a model's jaxpr that use the weights of its layers.

In a jaxpr a mapped dimension of `vmap` is an axis of an array. Each use of a weight matrix is therefore one equation, a
product, a convolution or a lookup, whose other operand holds the inputs at all positions and whose result holds the
outputs at all positions. For uses in the body of a `scan`, its steps are a further axis. Other uses are refused.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from .equations import READERS, Reading
from .rules import ways_out

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr", "closed_call": "call_jaxpr"}
_LAYOUT = ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy")
_SUMS = ("add", "add_any")


class Layer(NamedTuple):
    """The weights of a block, by the number of their leaf, and their bias."""

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
        shape, dtype: the shape and dtype of the result.
        feature_axis: the axis of the result that numbers outputs; all others are positions.
        groups: the number of groups of a convolution.
        inputs: maps the equation's operands to the inputs, (positions, groups, inputs), or to the indices of a lookup,
            (positions,).
        result: of a convolution, computes the result as a product of the inputs and the weights; `None` elsewhere.
        lengths: the lengths of the enclosing scans, outermost first.
    """

    layer: Layer
    shape: tuple[int, ...]
    dtype: Any
    feature_axis: int
    groups: int
    inputs: Callable[..., Array]
    result: Callable[[Array, Array], Array] | None = None
    lengths: tuple[int, ...] = ()

    def idle_tap(self) -> Array:
        """Zeros that are added to the result; the gradient in them is the gradient in the result."""
        return jnp.zeros((*self.lengths, *self.shape), self.dtype)

    def rows(self, values: Array) -> Array:
        """Values shaped like the tap, with leading axes before it, as (..., positions, outputs)."""
        inner = len(self.lengths) + len(self.shape)
        last = jnp.moveaxis(values, values.ndim - len(self.shape) + self.feature_axis, -1)
        return last.reshape(*values.shape[: values.ndim - inner], -1, self.shape[self.feature_axis])


class Enter(NamedTuple):
    """A step into the jaxpr of a call."""

    jaxpr: Any
    consts: Any


class Loop(NamedTuple):
    """A step into the body of a scan; its first `num_consts` arguments are the same at every step."""

    jaxpr: Any
    consts: Any
    length: int
    num_consts: int
    num_carry: int


Step: TypeAlias = Use | Enter | Loop | Mark | None


class Found(NamedTuple):
    """The uses of all layers in order, how often each bias is added to a product, and layers with other uses of it."""

    uses: list[Use]
    added: Counter[int]
    elsewhere: set[int]

    def of(self, layer: Layer) -> list[int]:
        """The indices of this layer's uses."""
        return [i for i, use in enumerate(self.uses) if use.layer == layer]

    def adds_bias(self, layer: Layer) -> bool:
        """Whether the bias is added once to every product, before any other operation."""
        simple = layer.leaf not in self.elsewhere and self.added[layer.leaf] == len(self.of(layer))
        return layer.bias is not None and simple and all(self.uses[i].groups == 1 for i in self.of(layer))


def marks_of(jaxpr: Any, layers: list[Layer]) -> Marks:
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


def find_uses(jaxpr: Any, layers: list[Layer]) -> Found:
    """All uses of the layers' weights in a model; `ValueError` for uses that cannot be followed."""
    found = Found([], Counter(), set())
    marks = marks_of(jaxpr, layers)
    _search(jaxpr, marks, found, ())
    _note_returned(jaxpr, marks, found)
    for layer in layers:
        if not found.of(layer):
            raise _refusal(layer, "the model never uses it")
        if len({found.uses[i].groups for i in found.of(layer)}) > 1:
            raise _refusal(layer, "the model uses it with several numbers of groups")
    return found


def _search(jaxpr: Any, marks: Marks, found: Found, lengths: tuple[int, ...]) -> None:
    for equation in jaxpr.eqns:
        step = step_of(equation, marks)
        given = marks_of_operands(equation, marks)
        if isinstance(step, Use):
            found.uses.append(step._replace(lengths=lengths))
            _note(equation, [mark for mark in given if not isinstance(mark, Weight)], found)
        elif isinstance(step, Enter):
            inner = inner_marks(step, given)
            _search(step.jaxpr, inner, found, lengths)
            leave(step, inner, equation, marks)
            continue
        elif isinstance(step, Loop):
            inner = inner_marks(step, given)
            _note(equation, given[step.num_consts :], found)
            _search(step.jaxpr, inner, found, (*lengths, step.length))
            _note_returned(step.jaxpr, inner, found)
        elif step is None:
            _note(equation, given, found)
        mark_results(equation, step, marks)


def step_of(equation: Any, marks: Marks) -> Step:
    """The kind of an equation; `None` for one that does not involve weights."""
    given = marks_of_operands(equation, marks)
    if not any(given):
        return None
    name, parameters = equation.primitive.name, equation.params
    if name in _CALLS:
        inner = parameters[_CALLS[name]]
        return Enter(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()))
    if name == "scan":
        body = parameters["jaxpr"]
        inner, consts = getattr(body, "jaxpr", body), getattr(body, "consts", ())
        num_consts, num_carry = _count_arguments(equation, inner)
        _check_scanned(given[num_consts:])
        return Loop(inner, consts, parameters["length"], num_consts, num_carry)
    weights = [place for place, mark in enumerate(given) if isinstance(mark, Weight)]
    if weights:
        return _weight_step(equation, given, weights)
    mark = given[0]
    return _rearranged(equation, mark) if isinstance(mark, Bias | Product) and name in _LAYOUT else None


def _rearranged(equation: Any, mark: Bias | Product) -> Bias | Product:
    """The mark of the result of an equation that moves entries."""
    name, parameters, axis = equation.primitive.name, equation.params, mark.axis
    if axis is None:
        return mark
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if name == "transpose":
        return mark._replace(axis=parameters["permutation"].index(axis))
    if name == "broadcast_in_dim":
        return mark._replace(axis=parameters["broadcast_dimensions"][axis])
    if before == after:
        return mark
    # Reshaped or squeezed: the axis of the same length with as many entries before it, if there is one.
    first = math.prod(before[:axis])
    same = (place for place in range(len(after)) if after[place] == before[axis] and math.prod(after[:place]) == first)
    return mark._replace(axis=next(same, None))


def _weight_step(equation: Any, given: list[Mark | None], weights: list[int]) -> Step:
    name, place = equation.primitive.name, weights[0]
    mark = given[place]
    assert isinstance(mark, Weight)
    layer, axes = mark
    if name == "transpose":
        return Weight(layer, tuple(axes[axis] for axis in equation.params["permutation"]))
    if name in ("convert_element_type", "copy"):
        return mark
    if name not in READERS:
        raise _refusal(layer, f"the model uses it by the operation `{name}`")
    if len(weights) > 1:
        raise _refusal(layer, "the model multiplies weights with weights")
    reading = READERS[name](equation, place, axes, layer.output_axis)
    if not isinstance(reading, Reading):
        raise _refusal(layer, f"the model uses it by the operation `{name}`, {reading}")
    result = equation.outvars[0].aval
    axes = reading.feature_axis, reading.groups
    return Use(layer, result.shape, result.dtype, *axes, reading.inputs, reading.result)


def marks_of_operands(equation: Any, marks: Marks) -> list[Mark | None]:
    """The mark of every operand."""
    return [None if isinstance(operand, Literal) else marks.get(operand) for operand in equation.invars]


def inner_marks(step: Enter | Loop, given: list[Mark | None]) -> Marks:
    """The marks of the arguments of an inner jaxpr; for a scan only of the arguments that are constant."""
    kept = given[: step.num_consts] if isinstance(step, Loop) else given
    return {own: mark for own, mark in zip(step.jaxpr.invars, kept, strict=False) if mark is not None}


def leave(step: Enter, inner: Marks, equation: Any, marks: Marks) -> None:
    """Copy the marks of an inner jaxpr's results to the results of its call."""
    for outer, own in zip(equation.outvars, step.jaxpr.outvars, strict=True):
        if not isinstance(own, Literal) and own in inner:
            marks[outer] = inner[own]


def mark_results(equation: Any, step: Step, marks: Marks) -> None:
    """Mark the result of an equation other than a call."""
    if isinstance(step, Use):
        marks[equation.outvars[0]] = Product(step.layer, step.feature_axis)
    elif isinstance(step, Weight | Bias | Product):
        marks[equation.outvars[0]] = step


def _note(equation: Any, given: list[Mark | None], found: Found) -> None:
    """Count biases that are added to their product; note layers whose bias or product is used otherwise."""
    marked = [mark for mark in given if mark is not None]
    if equation.primitive.name in _SUMS and _are_bias_and_product(marked):
        found.added[marked[0].layer.leaf] += 1
        return
    found.elsewhere.update(mark.layer.leaf for mark in marked)


def _are_bias_and_product(marked: list[Mark]) -> bool:
    """Whether these are a layer's bias and product with outputs along the same axis."""
    if {type(mark) for mark in marked} != {Bias, Product} or len({mark.layer for mark in marked}) > 1:
        return False
    axes = {mark.axis for mark in marked if isinstance(mark, Bias | Product)}
    return len(axes) == 1 and None not in axes


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


def _check_scanned(given: list[Mark | None]) -> None:
    for mark in given:
        if isinstance(mark, Weight):
            raise _refusal(mark.layer, "the model scans over it, or carries it through a scan")


def _note_returned(jaxpr: Any, marks: Mapping[Any, Mark], found: Found) -> None:
    """Refuse weights among the results; note layers whose bias or product is one, which may be used otherwise."""
    for result in jaxpr.outvars:
        mark = None if isinstance(result, Literal) else marks.get(result)
        if isinstance(mark, Weight):
            raise _refusal(mark.layer, "the model returns it")
        if mark is not None:
            found.elsewhere.add(mark.layer.leaf)


def _refusal(layer: Layer, reason: str) -> ValueError:
    return ValueError(
        f"`KFAC` cannot follow `{layer.name or 'the array'}`: {reason}. It follows products such as `weight @ x` and "
        f"`x @ weight.T`, convolutions and lookups, also in `vmap` and `scan`. {ways_out(layer.name)}"
    )
