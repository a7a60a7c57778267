"""The backends of the radial velocity against the definition, pair by pair, in float64."""

import dataclasses
import sys
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import steinkern as sk
from steinkern.core.particles import Scored
from steinkern.kernels import radial
from steinkern.kernels.distance import central
from steinkern.kernels.radial import gpu, gpu_tiles, radial_divergence, radial_velocity, tiled
from steinkern.kernels.radial.sums import Sums, velocity_sums
from steinkern.kernels.radial.tiled import over_tiles

BOUNDS = {"float32": 1e-5, "fast": 3e-4, "fastest": 2e-2}  # what `Isotropic` promises
KERNELS = {"RBF": sk.RBF(), "IMQ": sk.IMQ(), "IMQ of another power": sk.IMQ(exponent=-0.7)}


def problem(n: int, d: int, dtype=jnp.float32, scale: float = 1.0) -> tuple[jax.Array, Scored]:
    """Particles at the start of a fit to a wider Gaussian, with weights, and other places to look at."""
    keys = jr.split(jr.key(n + d), 3)
    points = scale * jr.normal(keys[0], (n, d), dtype)
    weights = jax.nn.softmax(jr.normal(keys[1], (n,), dtype))
    return points[::2] + scale * 0.1, Scored(points, -points / (2 * scale) ** 2, weights)


def by_pairs(kernel, at, source: Scored) -> np.ndarray:
    """Eq. (5) in float64, one difference at a time."""
    x, y, s, w = (np.asarray(a, np.float64) for a in (at, source.points, source.scores, source.weights))
    apart = x[:, None] - y[None]
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), kernel)
    value, derivative = (np.asarray(part) for part in wide.profile(jnp.asarray(np.sum(apart**2, axis=2))))
    return value @ (w[:, None] * s) - 2 * np.einsum("mn,n,mnd->md", derivative, w, apart)


def relative(found, truth) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) - truth)) / np.max(np.abs(truth)))


def on_chip(kernel, at, source: Scored, precision: str) -> jax.Array:
    digits = gpu_tiles.digits_for(kernel, at.shape[1], precision)
    return gpu.velocity_sums(kernel, at, source, digits, interpret=True).velocity(at)


@pytest.mark.every(4)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_dense_and_tiled_are_the_definition(kernel, backend):
    at, source = problem(33, 3, jnp.float64)
    adapted = kernel.adapt(source.points)
    found = radial_velocity(adapted, at, source, backend=backend)
    assert relative(found, by_pairs(adapted, at, source)) < 1e-12


@pytest.mark.every(2)
@pytest.mark.parametrize(("rows", "columns"), [(7, 5), (1, 33), (64, 64)])
def test_tiles_of_any_size_give_the_same_sums(rows, columns):
    at, source = problem(33, 3, jnp.float64)
    kernel = sk.RBF(1.5)
    whole = velocity_sums(kernel, at, source)
    found = over_tiles(lambda some, part: velocity_sums(kernel, some, part), at, source, rows, columns)
    assert isinstance(found, Sums)
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-15)


CASES = [
    ((130, 40), "RBF", "float32"),
    ((100, 130), "IMQ", "fast"),  # several chunks of coordinates, several blocks of the answer
    *[((200, 1), "RBF", precision) for precision in gpu_tiles.PRECISIONS],
    *[((130, 40), "RBF", precision) for precision in gpu_tiles.PRECISIONS if precision != "float32"],
    *[((130, 40), "IMQ", precision) for precision in gpu_tiles.PRECISIONS],
    ((100, 130), "RBF", "fast"),
    ((100, 130), "IMQ", "float32"),
    ((40, 300), "RBF", "float32"),
    ((130, 40), "IMQ of another power", "fast"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "kernel", "precision"), CASES, ids=str)
def test_the_gpu_kernel_is_as_exact_as_it_promises(shape, kernel, precision):
    at, source = problem(*shape)
    adapted = KERNELS[kernel].adapt(source.points)
    assert relative(on_chip(adapted, at, source, precision), by_pairs(adapted, at, source)) < BOUNDS[precision]


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_gpu_kernel_takes_any_scale(scale):
    at, source = problem(100, 5, scale=scale)
    kernel = sk.RBF().adapt(source.points)
    assert relative(on_chip(kernel, at, source, "float32"), by_pairs(kernel, at, source)) < BOUNDS["float32"]


@pytest.mark.thorough
@pytest.mark.parametrize("far", [1e2, 3e4, 1e5])
def test_the_gpu_kernel_bears_a_particle_that_is_far_out(far):
    _, source = problem(100, 5)
    points = source.points.at[0].set(far)
    source = Scored(points, -jnp.tanh(points), source.weights)
    kernel = sk.RBF(2.0)
    truth = by_pairs(kernel, points, source)
    found = np.asarray(on_chip(kernel, points, source, "float32"))
    assert relative(found[1:], truth[1:]) < BOUNDS["float32"]
    # The far one's own row is as good as the digits that its coordinates leave: 22 on the chip, 24 elsewhere.
    dense = relative(radial_velocity(kernel, points, source, backend="dense"), truth)
    assert relative(found, truth) < max(4 * dense, BOUNDS["float32"])
    assert np.all(np.isfinite(on_chip(kernel, points, source, "fastest")))


def test_the_centre_is_the_mean_unless_it_lies_outside_the_crowd():
    points = jr.normal(jr.key(0), (100, 50))
    np.testing.assert_allclose(central(points), jnp.mean(points, axis=0, keepdims=True), rtol=1e-6)
    far = points.at[0].set(1e5)
    assert np.any(np.all(central(far) == far[1:], axis=1))
    crowds = points.at[50:].add(1e4)
    assert np.any(np.all(central(crowds) == crowds, axis=1))


@pytest.mark.thorough
@pytest.mark.parametrize("precision", gpu_tiles.PRECISIONS)
@pytest.mark.parametrize("kernel", [sk.RBF(1.0), sk.IMQ(1.0)], ids=["RBF", "IMQ"])
def test_the_gpu_kernel_passes_on_what_is_not_a_number(kernel, precision):
    _, source = problem(50, 5)
    source = Scored(source.points.at[3, 1].set(jnp.nan), source.scores, source.weights)
    assert np.all(np.isnan(on_chip(kernel, source.points, source, precision)))


@pytest.mark.thorough
@pytest.mark.parametrize(("sd", "bandwidth"), [(1.0, 1.0), (1.0, 0.1), (10.0, 1.0)])
def test_the_gpu_kernel_keeps_its_digits_in_a_narrow_bandwidth(sd, bandwidth):
    _, source = problem(100, 50, scale=sd)
    kernel = sk.RBF(bandwidth)
    truth = by_pairs(kernel, source.points, source)
    dense = relative(radial_velocity(kernel, source.points, source, backend="dense"), truth)
    assert relative(on_chip(kernel, source.points, source, "float32"), truth) < max(
        4 * dense, 1e-6
    )  # 22 digits, not 24


def test_nothing_at_no_place():
    at, source = problem(10, 3)
    for backend in ("dense", "tiled"):
        assert radial_velocity(sk.RBF(1.0), at[:0], source, backend=backend).shape == (0, 3)


@pytest.mark.thorough
def test_the_gpu_kernel_maps_over_bandwidths_and_metrics():
    at, source = problem(100, 3)

    def one(bandwidth, stretch):
        moved = Scored(stretch * source.points, source.scores / stretch, source.weights)
        return on_chip(sk.RBF(bandwidth), stretch * at, moved, "float32")

    both = jax.vmap(one)(jnp.array([1.0, 2.0], jnp.float32), jnp.array([1.0, 3.0], jnp.float32))
    for found, bandwidth, stretch in zip(both, (1.0, 2.0), (1.0, 3.0), strict=True):
        moved = Scored(stretch * source.points, source.scores / stretch, source.weights)
        assert relative(found, by_pairs(sk.RBF(bandwidth), stretch * at, moved)) < BOUNDS["float32"]


@pytest.fixture
def interpreted(monkeypatch):
    """The GPU kernel wherever "auto" would take it, and "auto" for few pairs too."""
    real = gpu.velocity_sums
    monkeypatch.setattr(gpu, "velocity_sums", lambda *arguments: real(*arguments, interpret=True))
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arguments, cuda, default: cuda(*arguments))
    monkeypatch.setattr(radial, "DENSE_PAIRS", 0)


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreted")
def test_every_kernel_goes_through_the_gpu_kernel():
    _, source = problem(64, 3)
    metric = sk.linalg.Dense(jnp.diag(jnp.array([1.0, 2.0, 4.0], jnp.float32))).factorize(1e-6)
    kernel = sk.kernels.Preconditioned(sk.kernels.Isotropic(sk.RBF(), precision="fastest"), metric).adapt(source.points)
    found = kernel.velocity(source.points, source)
    truth = sk.kernels.Preconditioned(sk.RBF(kernel.base.scalar.bandwidth), metric)
    exact = radial_velocity(truth.base.scalar, truth._whiten(source).points, truth._whiten(source), backend="dense")
    error = relative(found, np.asarray(jax.vmap(metric.unwhiten)(exact), np.float64))
    assert 1e-6 < error < BOUNDS["fastest"]  # not the dense one


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreted")
def test_what_the_gpu_kernel_gives_can_be_differentiated():
    at, source = problem(40, 2)
    kernel = sk.RBF(1.0)
    found = jax.jvp(lambda x: radial_velocity(kernel, x, source), (at,), (jnp.ones_like(at),))[1]
    expected = jax.jvp(lambda x: radial_velocity(kernel, x, source, backend="dense"), (at,), (jnp.ones_like(at),))[1]
    assert relative(found, np.asarray(expected, np.float64)) < 1e-4  # both are float32


@pytest.mark.thorough
def test_many_pairs_go_in_tiles_everywhere(monkeypatch):
    at, source = problem(30, 2, jnp.float64)
    points, kernel = source.points, sk.RBF(1.0)
    metrics = jax.vmap(lambda scale: sk.linalg.Dense(scale * jnp.eye(2)).factorize(1e-6))(jnp.array([1.0, 2.0]))
    mixture = sk.kernels.Mixture.of(sk.kernels.Isotropic(kernel), metrics, points[:2], points)

    def everything():
        return (
            radial_velocity(kernel, at, source),
            radial_divergence(kernel, at, source),
            sk.ksd2(points, source.scores, kernel),
            sk.mmd2(points, at, kernel),
            mixture.velocity(points, source),
        )

    dense = everything()
    monkeypatch.setattr(radial, "DENSE_PAIRS", 0)
    monkeypatch.setattr("steinkern.kernels.mixture.DENSE_PAIRS", 0)
    for one, other in zip(everything(), dense, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)


def bytes_between(n: int, backend: str) -> int:
    """What a velocity of n particles in the plane needs beside its arguments and its result."""
    points, weights = jax.ShapeDtypeStruct((n, 2), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    run = jax.jit(lambda x, w: radial_velocity(sk.RBF(1.0), x, Scored(x, x, w), backend=backend))
    return run.lower(points, weights).compile().memory_analysis().temp_size_in_bytes


def test_memory_of_tiles_grows_with_the_points_alone():
    # A few copies of the points, and a tile; dense needs 64 GiB.
    assert bytes_between(2**17, "tiled") < 2**17 * 2 * 4 * 20 + 2**26


def test_auto_goes_in_tiles_on_a_cpu_before_its_distances_leave_the_caches():
    assert radial.CACHED_PAIRS < 2050**2
    # The distances of all pairs take 17 MB, those of a tile 3: half of the former is far from both.
    assert max(bytes_between(2050, "auto"), bytes_between(2050, "tiled")) < bytes_between(2050, "dense") / 2


def test_tiles_of_any_number_of_particles_are_nearly_full():
    for number in (1, 1500, 2048, 2049, 5000, 100_003):
        size = tiled._even(number, 2048)
        assert size <= 2048
        assert -number % size < -(-number // 2048)  # fewer than one for each tile


def test_auto_follows_its_rule(monkeypatch):
    chosen = radial._choose_backend
    at, source = problem(10, 3)
    assert chosen("auto", sk.RBF(1.0), at, source) == "dense"
    monkeypatch.setattr(radial, "DENSE_PAIRS", 0)
    assert chosen("auto", sk.RBF(1.0), at, source) == "gpu"
    assert chosen("auto", sk.RBF(1.0), *problem(10, 3, jnp.float64)) == "tiled"
    assert chosen("auto", sk.RBF(1.0), *problem(10, 512)) == "gpu"
    assert chosen("auto", sk.RBF(1.0), *problem(10, 513)) == "tiled"


def see_a_gpu(monkeypatch):
    gpu_tiles.shared_bytes()  # of an H200, and remembered
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def test_auto_goes_in_tiles_on_a_chip_that_is_too_small_and_says_so(monkeypatch):
    monkeypatch.setattr(radial, "DENSE_PAIRS", 0)
    monkeypatch.setattr(gpu_tiles, "shared_bytes", lambda: 1024)
    with pytest.warns(UserWarning, match=r"too little shared memory \(1 KiB\) for the GPU kernel in 3 dimensions"):
        assert radial._choose_backend("auto", sk.RBF(1.0), *problem(10, 3)) == "tiled"


@pytest.mark.parametrize(
    ("module", "attribute", "value", "reason"),
    [
        (
            "steinkern.kernels.radial.gpu_tiles",
            "shared_bytes",
            lambda: 0,
            r"the GPU is older than Ampere \(compute capability 8.0\)",
        ),
        ("jax.experimental.pallas", "triton", None, "this version of JAX has no Pallas for Triton"),
    ],
    ids=["an old GPU", "no Triton"],
)
def test_where_there_can_be_no_kernel_auto_goes_in_tiles_and_says_so(
    module, attribute, value, reason, monkeypatch, request
):
    from jax.experimental.pallas import triton  # noqa: F401 (there before it is taken away)

    if value is None:
        monkeypatch.delattr(f"{module}.{attribute}")
        monkeypatch.setitem(sys.modules, f"{module}.{attribute}", None)
    else:
        monkeypatch.setattr(f"{module}.{attribute}", value)
    monkeypatch.setattr(radial, "DENSE_PAIRS", 0)
    see_a_gpu(monkeypatch)
    gpu_tiles.reason_unavailable.cache_clear()
    request.addfinalizer(gpu_tiles.reason_unavailable.cache_clear)
    at, source = problem(10, 3)
    with pytest.warns(UserWarning, match=f"^{reason}: velocities of many particles are computed in tiles"):
        found = radial_velocity(sk.RBF(1.0), at, source)
    np.testing.assert_allclose(found, radial_velocity(sk.RBF(1.0), at, source, backend="tiled"), rtol=1e-12)
    with pytest.raises(ValueError, match=f"`backend` 'gpu' is not available: {reason}. Take 'tiled', or 'auto'"):
        radial_velocity(sk.RBF(1.0), at, source, backend="gpu")


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("kernel", "precision", "d"),
    [
        *[(sk.RBF(1.0), "float32", d) for d in (3, 50, 100, 200, 512)],
        *[(sk.RBF(1.0), precision, 50) for precision in ("fast", "fastest")],
        *[(sk.IMQ(1.0), precision, 100) for precision in gpu_tiles.PRECISIONS],
    ],
    ids=str,
)
def test_the_gpu_kernel_can_be_compiled_for_a_gpu(kernel, precision, d, monkeypatch):
    see_a_gpu(monkeypatch)
    _, source = problem(200, d)
    traced = jax.jit(lambda some: radial_velocity(kernel, some.points, some, precision=precision, backend="gpu"))
    known = ("NVIDIA H200", None, "gpu")[: len(dataclasses.fields(AbstractDevice))]  # JAX 0.10.0 asks for two
    nowhere = AbstractMesh((), (), abstract_device=AbstractDevice(*known))
    with warnings.catch_warnings(), use_abstract_mesh(nowhere):
        warnings.simplefilter("ignore", DeprecationWarning)  # the newest JAX says that this way to write kernels goes
        text = traced.trace(source).lower(lowering_platforms=("cuda",)).as_text()
    assert "radial_velocity" in text


@pytest.mark.parametrize("d", [1, 16, 50, 64, 100, 128, 200, 512])
@pytest.mark.parametrize("kernel", [sk.RBF(1.0), sk.IMQ(1.0)], ids=["RBF", "IMQ"])
@pytest.mark.parametrize("precision", gpu_tiles.PRECISIONS)
def test_every_case_of_auto_has_a_tile_that_fits(d, kernel, precision):
    digits, profiles = gpu_tiles.digits_for(kernel, d, precision), 1 if isinstance(kernel, sk.RBF) else 2
    tile = gpu_tiles.tile_for(d, digits, profiles)
    assert tile is not None
    assert tile.shared_bytes(d, digits, profiles) <= gpu_tiles.shared_bytes()


def test_bad_input_says_what_to_do(monkeypatch):
    at, source = problem(10, 3, jnp.float64)
    with pytest.raises(ValueError, match=r"`backend` 'gpu' needs an NVIDIA GPU, and JAX sees none\. Take 'tiled'"):
        radial_velocity(sk.RBF(1.0), *problem(4, 2), backend="gpu")
    see_a_gpu(monkeypatch)
    with pytest.raises(ValueError, match=r"`backend` 'gpu' computes in float32, got float64 points\. Take 'tiled'"):
        radial_velocity(sk.RBF(1.0), at, source, backend="gpu")
    monkeypatch.setattr(gpu_tiles, "shared_bytes", lambda: 1024)
    with pytest.raises(ValueError, match=r"too little shared memory for 3 dimensions\. Take 'tiled', or 'auto'"):
        radial_velocity(sk.RBF(1.0), *problem(4, 3), backend="gpu")
