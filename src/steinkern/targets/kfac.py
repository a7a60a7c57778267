"""Kronecker-factored curvature of networks (KFAC; Martens and Grosse, 2015): from taps on linear layers to blocks.

For one example the Fisher information of a linear layer z = W x + b is exactly a Kronecker product, G ⊗ x̄x̄ᵀ, with
x̄ = (x, 1) its input and G = JᵀΛJ the output's Fisher information Λ pulled back to z. KFAC replaces the mean of the
products over examples by the product of the means.

The input and the pulled-back gradients are read off a backward pass: each product W @ x gets two idle arguments whose
"gradients" are, by definition, x and the gradient at z.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.operators import AbstractOperator, Blocks, Dense, Diagonal, Kronecker
from ..core.particles import merge
from ..core.types import Batch, PyTree, Scalar, Vector, cast_like, check_callable
from .curvature import AbstractCurvature, likelihood_scale
from .likelihood import AbstractLikelihood
from .supports import Real, Space
from .target import AbstractTarget


class KFAC(AbstractCurvature):
    """The Fisher information as one Kronecker product a linear layer, with nothing of size d² formed.

    For a network of `equinox.nn.Linear` layers, anywhere in the parameters' pytree, each called once an example (one
    that is mapped or scanned over several inputs has NaN for curvature). The other parameters (a noise variance, for
    instance) get the diagonal of their exact Fisher information. The prior's own curvature enters as its row sums,
    exact where coordinates are independent a priori: averaged over each layer, and entry by entry elsewhere.

    Each layer's block is exact for a single example, and for any number on a deep linear network with a Gaussian
    likelihood. Curvature between layers is left out.

    Args:
        model: `model(parameters, example)`, the output (logits, means) for one example; not under `jax.jit` of its
            own, whose arguments must be arrays.
        likelihood: `Categorical()`, `Gaussian(variance)`, `GaussianNoise()` …; its Fisher information in the output is
            exact, so that no labels are drawn.
    """

    model: Any
    likelihood: Any

    def __check_init__(self) -> None:
        check_callable("model", self.model, "a function of the parameters and one example")
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(f"`likelihood` must be a likelihood such as `Categorical()`, got {self.likelihood!r}.")

    def __call__(self, target: AbstractTarget, point: Vector, batch: Batch) -> Blocks:
        if not target.exchangeable or batch is None:
            raise ValueError("`KFAC` needs single examples: give a `Posterior` and `data` to `fit`.")
        pieces = _pieces(target)
        factors = jax.vmap(lambda example: self._one_example(target, pieces, point, example))(batch)
        number = likelihood_scale(target, point, batch) * len(factors.outputs)
        prior = _prior_curvature(target, point)
        blocks: list[AbstractOperator] = []
        layers, others = iter(factors.layers), iter(factors.others)
        for piece in pieces:
            own = prior[piece.start : piece.stop]
            if piece.layer:
                blocks.append(_kronecker(piece, next(layers), number, jnp.mean(own)))
            else:
                blocks.append(Diagonal(number * jnp.mean(next(others), axis=0) + own))
        return Blocks(tuple(blocks))

    def _one_example(self, target: AbstractTarget, pieces: "list[_Piece]", point: Vector, example: PyTree) -> "_Taps":
        """Inputs, pulled-back Fisher information and other diagonal entries of one example."""
        space = _space(target)
        leaves = jax.tree_util.tree_leaves(space.layout.unravel(point))
        others = [piece.leaf for piece in pieces if not piece.layer]

        # A function of the other leaves alone: gradients in the weights would be the largest arrays of a step.
        def output(taps: list["_Tap"], free: list[Array]) -> Array:
            moved = dict(zip(others, free, strict=True))
            whole = space.assemble([moved.get(i, leaf) for i, leaf in enumerate(leaves)])
            parameters, weights = _tapped(whole, taps)
            try:
                value = jnp.reshape(self.model(merge(parameters, target.shared), example), (-1,))
            except TypeError as error:
                if _TappedWeight.__name__ not in str(error) and _Transposed.__name__ not in str(error):
                    raise
                raise ValueError(_other_use("another operation on them, or a layer under `jax.jit`")) from error
            for weight in weights:
                weight.check_called_once()
            return value

        layers = [piece for piece in pieces if piece.layer]
        idle = [_Tap.idle(one.inputs, one.outputs, point.dtype) for one in layers]
        value, pull_back = jax.vjp(output, idle, [leaves[i] for i in others])
        taps, gradients = jax.vmap(pull_back)(jnp.eye(value.shape[0], dtype=value.dtype))
        fisher = self.likelihood.fisher(value)

        def weighted(jacobian: Float[Array, "k i"]) -> Float[Array, "k i"]:
            return jnp.matmul(fisher, jacobian, precision="highest")

        factors = [_Layer(tap.input[0], tap.calls[0], tap.output, weighted(tap.output)) for tap in taps]
        flat = [gradient.reshape(gradient.shape[0], gradient.size // gradient.shape[0]) for gradient in gradients]
        return _Taps(value, factors, [jnp.sum(jacobian * weighted(jacobian), axis=0) for jacobian in flat])


class _Tap(NamedTuple):
    """The idle arguments of one product; after the backward pass, the layer's input and the gradient at its output.

    Of a layer that is called in a `vmap` or `scan` inside of the model they are sums over its inputs; the number of
    calls, which is one of the sums, betrays it.
    """

    input: Array
    output: Array
    calls: Array

    @classmethod
    def idle(cls, inputs: int, outputs: int, dtype: Any) -> "_Tap":
        return cls(jnp.zeros(inputs, dtype), jnp.zeros(outputs, dtype), jnp.zeros((), dtype))


class _Layer(NamedTuple):
    """One example's share of a layer's factors: its input x, how often it was called, and J and ΛJ at its output."""

    input: Array
    calls: Array
    jacobian: Array
    weighted: Array


class _Taps(NamedTuple):
    """What one example says: the model's output, every layer's factors, and the other parameters' diagonal."""

    outputs: Array
    layers: list[_Layer]
    others: list[Array]


class _Piece(NamedTuple):
    """A stretch of coordinates: a linear layer, or another leaf; `leaf` counts the leaves before it."""

    start: int
    size: int
    leaf: int
    layer: bool
    inputs: int = 0
    outputs: int = 0
    bias: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.size


def _is_layer(node: Any) -> bool:
    """Whether a node is a linear layer with weights; `eqx.partition` leaves `None` for those that stay fixed."""
    return isinstance(node, eqx.nn.Linear) and node.weight is not None


def _space(target: AbstractTarget) -> Space:
    if not isinstance(target.space, Space):
        raise ValueError("`KFAC` needs parameters that hold Equinox layers, got the sites of another library's model.")
    return target.space


def _pieces(target: AbstractTarget) -> list[_Piece]:
    """The layers and the other leaves, in the order of their coordinates."""
    space = _space(target)
    layout = space.layout
    shapes = layout.structure.unflatten([jax.ShapeDtypeStruct(shape, layout.dtype) for shape in layout.shapes])
    pieces: list[_Piece] = []
    start = leaf = 0
    for node in jax.tree_util.tree_leaves(shapes, is_leaf=_is_layer):
        if _is_layer(node):
            outputs, inputs = node.weight.shape
            bias = node.bias is not None
            piece = _Piece(start, outputs * (inputs + bias), leaf, True, inputs, outputs, bias)
            if not all(isinstance(rule, Real) for rule in space.supports[leaf : leaf + 1 + bias]):
                raise ValueError(
                    "`KFAC` needs linear layers without constraints, got a `support` for "
                    f"{layout.names[leaf] or 'one'}. Leave it out, or use `Fisher`."
                )
        else:
            piece = _Piece(start, node.size, leaf, False)
        pieces.append(piece)
        start += piece.size
        leaf += 1 + piece.bias
    if not any(piece.layer for piece in pieces):
        raise ValueError(
            "`KFAC` found no `equinox.nn.Linear` among the parameters. Build the network of such layers, or use "
            "`Fisher(model, likelihood)`."
        )
    return pieces


class _TappedWeight:
    """Stands in for a layer's weight matrix: `weight @ x`, or `x @ weight.T`, is the product, tapped on both sides."""

    __array_ufunc__ = None  # a NumPy array on the left leaves the product to us

    def __init__(self, weight: Array, tap: _Tap):
        self.weight, self.tap, self.calls = weight, tap, 0
        self.shape, self.dtype, self.ndim, self.size = weight.shape, weight.dtype, weight.ndim, weight.size

    @property
    def T(self) -> "_Transposed":
        return _Transposed(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ValueError(_other_use(f"`weight.{name}`"))

    def __matmul__(self, x: Array) -> Array:
        self.calls += 1
        if jnp.shape(x) != self.weight.shape[1:]:
            raise ValueError(
                f"`model` must call each layer on one example: a vector of {self.weight.shape[1]}, got shape "
                f"{jnp.shape(x)}."
            )
        return _product(self.weight, cast_like(x, self.weight), self.tap)

    def check_called_once(self) -> None:
        if self.calls != 1:
            raise ValueError(
                f"`KFAC` needs every linear layer to be called once an example; one with weights of shape "
                f"{self.weight.shape} was called {self.calls} times. Use `Fisher` for shared or unused layers."
            )


class _Transposed:
    """The transpose of a tapped weight matrix, good for `x @ weight.T` alone."""

    __array_ufunc__ = None

    def __init__(self, tapped: _TappedWeight):
        self.T, self.shape, self.dtype, self.ndim = tapped, tapped.shape[::-1], tapped.dtype, tapped.ndim

    def __rmatmul__(self, x: Array) -> Array:
        return self.T @ x

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ValueError(_other_use(f"`weight.T.{name}`"))


def _other_use(what: str) -> str:
    return (
        f"`model` must use the weights of a linear layer by calling the layer, or as `weight @ x` or `x @ weight.T` "
        f"for one example, got {what}. Use `Fisher` for other uses."
    )


@jax.custom_vjp
def _product(weight: Float[Array, "o i"], x: Float[Array, " i"], tap: _Tap) -> Float[Array, " o"]:
    return jnp.matmul(weight, x)


def _product_forward(weight: Array, x: Array, tap: _Tap) -> tuple[Array, tuple[Array, Array]]:
    return jnp.matmul(weight, x), (weight, x)


def _product_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[None, Array, _Tap]:
    weight, x = saved
    calls = 1 + 0 * jnp.sum(x)  # of x, so that a `vmap` over several inputs adds them up
    return None, jnp.matmul(weight.T, gradient), _Tap(x, gradient, calls)  # nothing asks for the gradient in weights


_product.defvjp(_product_forward, _product_backward)


def _tapped(parameters: PyTree, taps: list[_Tap]) -> tuple[PyTree, list[_TappedWeight]]:
    """The parameters with every layer's weight replaced by a tapped one, and those."""
    remaining = iter(taps)
    weights: list[_TappedWeight] = []

    def tap(node: Any) -> Any:
        if not _is_layer(node):
            return node
        weights.append(_TappedWeight(node.weight, next(remaining)))
        return eqx.tree_at(lambda layer: layer.weight, node, weights[-1])

    return jax.tree.map(tap, parameters, is_leaf=_is_layer), weights


def _kronecker(piece: _Piece, layer: _Layer, number: Scalar, prior: Scalar) -> Kronecker:
    inputs = layer.input
    if piece.bias:
        inputs = jnp.concatenate([inputs, jnp.ones((inputs.shape[0], 1), inputs.dtype)], axis=1)
    second_moment = jnp.matmul(inputs.T, inputs, precision="highest") / inputs.shape[0]
    # Contracted over all examples at once: a matrix for each of them would be the largest array of a step.
    fisher = jnp.einsum("bki,bkj->ij", layer.jacobian, layer.weighted, precision="highest") / inputs.shape[0]
    fisher = jnp.where(jnp.max(layer.calls) > 1, jnp.nan, fisher)
    return Kronecker(Dense(number * fisher), Dense(second_moment), prior, piece.bias)


def _prior_curvature(target: AbstractTarget, point: Vector) -> Vector:
    """The row sums of −∇² of the log prior (and constraints' Jacobian), negative ones set to 0."""

    def score(x: Vector) -> Vector:
        return jax.grad(lambda at: cast_like(target.power, at) * target.log_base(at))(x)

    _, product = jax.jvp(score, (point,), (jnp.ones_like(point),))
    return jnp.maximum(-product, 0)
