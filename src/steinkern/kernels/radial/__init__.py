"""The radial velocity of weighted, scored points, the hot loop of the library, and its backends.

Every kernel of the paper is a change of variables around it (see `kernels.matrix`), so this is the only place that has
to be fast. Three backends give the same sums (see `sums`):

- "dense" forms the m×n matrix of distances: fastest for few points;
- "tiled" computes it tile by tile: linear memory, any device, any dtype;
- "gpu" keeps the tiles on the chip of an NVIDIA GPU (see `gpu`): float32 arrays only.

"auto" takes "dense" up to `DENSE_PAIRS` pairs, on a CPU up to `CACHED_PAIRS`. Above that it takes "gpu" where the
program runs on one, in float32 and in at most 512 dimensions, and else "tiled". The device is known at compilation, not
at tracing. Under a mesh with an axis "particles" each device applies this rule to its own share (see `ring`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.particles import Scored
from ...linalg.metrics import dot
from ..distance import centered_squared_distances, central
from ..scalar import AbstractScalarKernel
from . import gpu, gpu_tiles
from .gpu_tiles import PRECISIONS as PRECISIONS
from .gpu_tiles import Precision as Precision
from .ring import devices_in_ring, over_ring
from .sums import Sums, divergence_sum, velocity_sums
from .tiled import over_tiles

Backend: TypeAlias = Literal["auto", "dense", "tiled", "gpu"]
BACKENDS = get_args(Backend)
DENSE_PAIRS = 2**24
"""The most pairs (64 MiB of distances in float32) for which "auto" forms the whole matrix."""
CACHED_PAIRS = 2**22
"""The same limit on a CPU, where tiles of more pairs are faster because they fit its caches."""


def radial_velocity(
    kernel: AbstractScalarKernel,
    at: Float[Array, "m d"],
    source: Scored,
    *,
    precision: Precision = "float32",
    backend: Backend = "auto",
) -> Float[Array, "m d"]:
    """φ(x) = Σ_j w_j [k(r²) s_j − 2 k'(r²) (x − y_j)] with r = ‖x − y_j‖, for every row x of `at`.

    This is Eq. (5) with general weights: the second term is ∇_y k, the repulsion.

    Args:
        kernel: k, with a number for its bandwidth.
        at: the rows x.
        source: the points y_j with scores s_j and weights w_j.
        precision: of the GPU kernel, see `Isotropic`; the other backends compute in the dtype.
        backend: "auto", "dense", "tiled" or "gpu".
    """
    at, source = _center(at, source)
    on_gpu = partial(_on_gpu, kernel, precision=precision)
    return _over_pairs(partial(velocity_sums, kernel), kernel, at, source, backend, precision, on_gpu).velocity(at)


def radial_divergence(
    kernel: AbstractScalarKernel, at: Float[Array, "m d"], source: Scored, *, backend: Backend = "auto"
) -> Float[Array, " m"]:
    """∇·φ(x) of `radial_velocity`, for every row x of `at`. There is no GPU kernel for it: "gpu" computes in tiles."""
    return _over_pairs(partial(divergence_sum, kernel), kernel, *_center(at, source), backend)


def mean_values(
    kernel: AbstractScalarKernel, at: Float[Array, "m d"], points: Float[Array, "n d"]
) -> Float[Array, " m"]:
    """The mean of k(‖x − y_j‖²) over the points y_j, for every row x of `at`."""

    def sums(rows: Array, block: Scored) -> Array:
        return dot(kernel.profile(centered_squared_distances(rows, block.points))[0], block.weights)

    return _over_pairs(sums, kernel, *_center(at, Scored.uniform(points, jnp.zeros_like(points))), "auto")


def center_of(points: Float[Array, "n d"]) -> Float[Array, "1 d"]:
    """`central`; on several devices it takes rows by a masked sum, since an index would gather all points on each."""
    if devices_in_ring(points.shape[0]) == 1:
        return central(points)

    def by_sum(points: Array, index: Array) -> Array:
        row = jnp.arange(points.shape[0]) == index
        return jnp.sum(jnp.where(row[:, None], points, 0), axis=0, keepdims=True)

    return central(points, by_sum)


def _center(at: Float[Array, "m d"], source: Scored) -> tuple[Float[Array, "m d"], Scored]:
    """Rows and sources about a centre: sums depend on differences only, and products of centred points keep digits."""
    center = center_of(source.points)
    return at - center, Scored(source.points - center, source.scores, source.weights)


def _over_pairs(
    sums: Callable[[Array, Scored], Any],
    kernel: AbstractScalarKernel,
    at: Array,
    source: Scored,
    backend: Backend,
    precision: Precision = "float32",
    on_gpu: Callable[[Array, Scored], Any] | None = None,
) -> Any:
    """`sums(at, source)` by the backend, on one device or over the ring of devices that share the particles."""
    tiled = partial(over_tiles, sums)

    def on_device(rows: Array, block: Scored) -> Any:
        choice = _choose_backend(backend, kernel, rows, block, precision)
        if choice == "gpu" and on_gpu is not None:
            if backend == "gpu":
                return on_gpu(rows, block)
            return jax.lax.platform_dependent(rows, block, cuda=on_gpu, default=tiled)
        if backend == "auto" and choice == "dense" and rows.shape[0] * block.points.shape[0] > CACHED_PAIRS:
            return jax.lax.platform_dependent(rows, block, cpu=tiled, default=sums)
        return sums(rows, block) if choice == "dense" else tiled(rows, block)

    devices = devices_in_ring(at.shape[0], source.points.shape[0])
    return over_ring(on_device, at, source, devices) if devices > 1 else on_device(at, source)


def _choose_backend(
    backend: Backend, kernel: AbstractScalarKernel, at: Array, source: Scored, precision: Precision = "float32"
) -> Backend:
    if backend == "gpu" and at.dtype != jnp.float32:
        raise ValueError(f"`backend` 'gpu' computes in float32, got {at.dtype} points. Take 'tiled', or 'auto'.")
    if backend == "gpu" and jax.default_backend() != "gpu":
        raise ValueError("`backend` 'gpu' needs an NVIDIA GPU, and JAX sees none. Take 'tiled', or 'auto'.")
    if backend != "auto":
        return backend
    if at.shape[0] * source.points.shape[0] <= DENSE_PAIRS:
        return "dense"
    return "gpu" if at.dtype == jnp.float32 and gpu_tiles.fits(kernel, at.shape[1], precision) else "tiled"


@eqx.filter_custom_jvp
def _on_gpu(kernel: AbstractScalarKernel, at: Array, source: Scored, *, precision: Precision) -> Sums:
    return gpu.velocity_sums(kernel, at, source, gpu_tiles.digits_for(kernel, at.shape[1], precision))


def _on_gpu_jvp(primals: Any, tangents: Any, *, precision: Precision) -> tuple[Sums, Sums]:
    """The derivative of `_on_gpu`, computed in tiles: only diagnostics need it, so it has no GPU kernel."""

    def tiled(kernel: AbstractScalarKernel, at: Array, source: Scored) -> Sums:
        return over_tiles(lambda rows, block: velocity_sums(kernel, rows, block), at, source)

    return _on_gpu(*primals, precision=precision), eqx.filter_jvp(tiled, primals, tangents)[1]


cast(Any, _on_gpu).def_jvp(_on_gpu_jvp)
