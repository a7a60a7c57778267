"""Workarounds for XLA, each with the version and the measurement to repeat before it is removed."""

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from threadpoolctl import OpenBLASController, ThreadpoolController

R = TypeVar("R")

_LAPACK = {
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "ormqr", "qr", "schur",
    "svd", "triangular_solve", "tridiagonal",
}  # fmt: skip
"""The primitives that jaxlib hands to LAPACK on a CPU."""
_MAX_SMALL = 512**2
"""The most entries of a matrix for which BLAS gets one thread.

jaxlib takes LAPACK from scipy's OpenBLAS and calls it from XLA's threads. OpenBLAS starts more threads for each call,
and they wait for one another. Five Choleskys of 11 × 11 in a `scan`, for 100 points, take 2.95 s (jax 0.12, two
cores), and 0.049 s with one thread of BLAS. On a busy machine two threads lose at every size: a fit of five steps with
20 determinants of 300 × 300 takes 0.7 s with one, and over 15 s with two. On an idle one two threads gain: nothing up
to 50 × 50, a third in inverses from 128 × 128 on, a tenth in a Cholesky of 512 × 512 and a quarter in one of 1,000.
"""


def has_small_matrices(jaxpr: Any) -> bool:
    """Whether a program calls LAPACK, and for small matrices alone; a jaxpr, or a closed one."""
    calls = (equation.invars for equation in _equations(jaxpr) if equation.primitive.name in _LAPACK)
    shapes = [operand.aval.shape for operands in calls for operand in operands]
    sizes = [shape[-1] * shape[-2] for shape in shapes if len(shape) > 1]
    return bool(sizes) and max(sizes) <= _MAX_SMALL


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, or of a closed one, and of those inside it."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for leaf in jax.tree.leaves(equation.params):
            if hasattr(getattr(leaf, "jaxpr", leaf), "eqns"):
                yield from _equations(leaf)


def is_faster_in_series(function: Callable[[Any, Any], Any], points: Array, batch: Any) -> bool:
    """Whether `function(point, batch)` is mapped faster over points one after the other: on a CPU, by its program.

    Together all points wait for the longest loop, and each turn of it copies their numbers. The gradients of an
    `odeint` at 100 points take 8.6 ms together and 4.5 ms one after the other, those of a smaller one 1.65 and 0.74 ms;
    Hessians 570 and 77 ms, 131 and 27 ms (jax 0.12). Likewise all branches of a switch are computed for points
    together: calls of `sample` with an `expm` take 3.5 s, and one after the other 2.2 s.
    """
    if jax.default_backend() != "cpu":
        return False
    one, together = (
        jax.make_jaxpr(function)(points[0], batch),
        jax.make_jaxpr(jax.vmap(function, (0, None)))(points, batch),
    )
    lengths_differ = (  # the condition of a loop that is equally long at all points has no axis of points
        equation.params["cond_jaxpr"].out_avals[0].shape
        for equation in _equations(together)
        if equation.primitive.name == "while"
    )
    return any(lengths_differ) or _num_switches(one) > _num_switches(together)


def _num_switches(jaxpr: Any) -> int:
    """The number of conditionals of more than two branches; of points together those alone that choose one for all."""
    return sum(len(equation.params.get("branches", ())) > 2 for equation in _equations(jaxpr))


def columns_at_once() -> int:
    """The number of columns of Hessians that are computed together: on a CPU as many as its cache holds.

    100 Hessians of a latent Gaussian process at 60 times take 3.0 s together and 1.5 s one after the other, at 32 times
    0.37 and 0.21 s, at 11 times 9.7 and 9.8 ms (jax 0.12). Elsewhere memory is the bound.
    """
    return 100 if jax.default_backend() == "cpu" else 10_000


_lock = threading.Lock()
_limits: list[Any] = []
"""One entry for each block of `one_blas_thread` that is running; the first holds the caller's setting."""


@functools.cache
def _blas() -> Any:
    """Controls the libraries of BLAS in this process."""
    importlib.import_module("scipy.linalg.cython_lapack")  # loads OpenBLAS, as jaxlib's first call of LAPACK does
    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block; the last block to end, of any thread, restores the caller's limit."""
    with _lock:
        _limits.append(None if _limits else _blas().limit(limits=1))
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if limit is not None:
                OpenBLASController.clear_controlling_thread(force=True)  # another thread may have set the limit
                limit.restore_original_limits()


def quick_options() -> dict[str, Any]:
    """Options for programs that run once or twice: on a CPU, optimisation level 0.

    Compilation takes a fifth to a half of the time, and the code runs a third as fast (jax 0.12).
    """
    return {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else gpu_options()


def gpu_options() -> dict[str, Any]:
    """Options for programs on a GPU: products of matrices by cuBLAS alone.

    XLA otherwise compiles dozens of Triton kernels for each product and times them: on an H200 the first call of a KFAC
    mixture on a network 784-400-400-10 takes 83 s with them, and 11 s without.
    """
    return {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else {}


def convolves_by_patches() -> bool:
    """Whether convolutions with a batch of filters are computed as products of patches: on a GPU.

    cuDNN runs the gradients of such convolutions group by group: those of LeNet's second layer took 10 ms of an H200
    for 10 particles, 128 images and 10 classes.
    """
    return jax.default_backend() == "gpu"


def on_gpu(function: Callable[..., R], other: Callable[..., R], *arrays: Any) -> R:
    """`function` of the arrays on an NVIDIA GPU, `other` on other devices; both are traced, one is compiled."""
    return jax.lax.platform_dependent(*arrays, cuda=function, default=other)


MIN_SPLIT_LENGTH = 2048
"""The least length of a contracted axis that is split into chunks on a GPU.

cuBLAS gives each tile of 32 × 32 results one block of threads, which walks along the contracted axis. On an H200 the
second moments of 6 channels at a million positions took 62 ms for ten particles, and the products of ten points in
314,000 coordinates with ten anchors 3.4 ms; a fraction of a millisecond in chunks.
"""
_MAX_SIDE = 256
"""The most rows or columns of a product that is split."""
_CHUNK = 1024
"""The length of a chunk."""
_TILE = 32
"""The side of a tile."""


def long_squares(rows: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """Σ r rᵀ over the rows r."""
    count, size = rows.shape
    pack, chunks = _packs_and_chunks(count, size)

    def whole(rows: Array) -> Array:
        return jnp.matmul(rows.T, rows, precision="highest")

    if count < MIN_SPLIT_LENGTH or size > _MAX_SIDE or pack == chunks == 1:
        return whole(rows)
    return on_gpu(lambda rows: squares_in_chunks(rows, chunks, pack), whole, rows)


def long_products(left: Float[Array, "m d"], right: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """The products a·b of all rows a of `left` and b of `right`."""
    chunks = number_of_chunks(left.shape[1]) if max(left.shape[0], right.shape[0]) <= _MAX_SIDE else 1

    def whole(left: Array, right: Array) -> Array:
        return jnp.matmul(left, right.T, precision="highest")

    if chunks == 1:
        return whole(left, right)
    return on_gpu(lambda left, right: products_in_chunks(left, right, chunks), whole, left, right)


def squares_in_chunks(rows: Float[Array, "n d"], chunks: int, pack: int = 1) -> Float[Array, "d d"]:
    """Σ r rᵀ over the rows r, summed over equal chunks.

    `pack` rows side by side make one long row, so that few columns fill a tile; the result is then the sum of the
    diagonal blocks.
    """
    size = rows.shape[1]
    stacked = rows.reshape(chunks, -1, pack * size)
    sums = jnp.sum(jnp.einsum("cni,cnj->cij", stacked, stacked, precision="highest"), axis=0)
    blocks = sums.reshape(pack, size, pack, size)
    return sum((blocks[i, :, i] for i in range(1, pack)), start=blocks[0, :, 0])


def products_in_chunks(left: Float[Array, "m d"], right: Float[Array, "n d"], chunks: int) -> Float[Array, "m n"]:
    """The products of all rows, summed over equal chunks of the contracted axis."""
    a, b = (rows.reshape(rows.shape[0], chunks, -1) for rows in (left, right))
    return jnp.sum(jnp.einsum("mck,nck->cmn", a, b, precision="highest"), axis=0)


def number_of_chunks(length: int) -> int:
    """The divisor of `length` whose chunks are closest to `_CHUNK`, half to four times as long; 1 where there is none.

    A length below `MIN_SPLIT_LENGTH` is one chunk.
    """
    if length < MIN_SPLIT_LENGTH:
        return 1
    max_chunks = 2 * length // _CHUNK
    divisors = [count for count in range(2, max_chunks + 1) if length % count == 0 and length // count <= 4 * _CHUNK]
    return min(divisors, key=lambda count: abs(length // count - _CHUNK), default=1)


def _packs_and_chunks(count: int, size: int) -> tuple[int, int]:
    """Rows packed per tile (a divisor of `count`), and the number of chunks of the packed rows."""
    for pack in range(max(1, _TILE // max(1, size)), 0, -1):
        if count % pack == 0:
            chunks = number_of_chunks(count // pack)
            if chunks > 1 or count // pack <= 4 * _CHUNK:
                return pack, chunks
    return 1, 1


Kind = Literal["sum", "max", "min"]
_MAX_SUMMED = 1024
"""The most numbers to add one after the other; XLA adds more of them pairwise, which keeps more digits."""
_MAX_ONE_PASS = 4095
"""The most entries of a matrix to reduce in one pass; for more, XLA's sums are faster."""


def reduce_together(kinds: Sequence[Kind], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The sum, maximum or minimum of all entries of each array, in one kernel. NaN stays NaN.

    On a CPU XLA takes 10 to 20 ms to compile a kernel, whatever its size, and makes two for a plain sum or maximum of
    more than 32 numbers. A reduction of several operands is one kernel, with all that computes its operands: a small
    `svgd` fit and a mixture fit take 4.2 instead of 4.5 s of processor time, compilation included (jax 0.9.2).

    Args:
        kinds: a kind for each array.
        arrays: of one shape with one or two axes; sums keep their types.
    """
    shape = arrays[0].shape
    floats = {array.dtype for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)}
    if max(shape) > _MAX_SUMMED or len(floats) > 1:  # XLA mixes floats with integers, but not with other floats
        return reduce_apart(kinds, arrays)
    if arrays[0].size > _MAX_ONE_PASS:
        if set(kinds) == {"sum"}:
            return reduce_apart(kinds, arrays)
        arrays = _reduce(kinds, arrays, (0,))  # along the columns first
    return _reduce(kinds, arrays, tuple(range(arrays[0].ndim)))


def reduce_apart(kinds: Sequence[Kind], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """One reduction per array; faster for large or batched arrays."""
    functions = {"sum": lambda array: jnp.sum(array, dtype=array.dtype), "max": jnp.max, "min": jnp.min}
    return tuple(functions[kind](array) for kind, array in zip(kinds, arrays, strict=True))


def _reduce(kinds: Sequence[Kind], arrays: Sequence[Array], axes: tuple[int, ...]) -> tuple[Array, ...]:
    combiners = {"sum": jax.lax.add, "max": jax.lax.max, "min": jax.lax.min}
    identities = tuple(_identity(kind, array) for kind, array in zip(kinds, arrays, strict=True))

    def combine(left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(combiners[kind](*pair) for kind, *pair in zip(kinds, left, right, strict=True))

    # The barrier keeps XLA from merging this reduction with the next, and from splitting one of which a single result
    # is used into two kernels.
    return tuple(jax.lax.optimization_barrier(jax.lax.reduce(tuple(arrays), identities, combine, axes)))


def _identity(kind: Kind, array: Array) -> Array:
    """The initial value of a reduction, which changes no result."""
    if kind == "sum":
        return jnp.zeros((), array.dtype)
    limits = jnp.iinfo(array.dtype) if jnp.issubdtype(array.dtype, jnp.integer) else None
    largest, smallest = (limits.max, limits.min) if limits else (jnp.inf, -jnp.inf)
    return jnp.array(smallest if kind == "max" else largest, array.dtype)
