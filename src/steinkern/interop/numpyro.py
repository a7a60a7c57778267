"""NumPyro models as targets, with NumPyro's log density and maps between coordinates."""

import inspect
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, UInt32

from ..core.arrays import as_array
from ..core.particles import Layout
from ..core.programs import compiled_quickly
from ..core.types import Batch, Key, Points, PyTree, Scalar, Vector, as_number, check_callable
from ._model import AbstractModelSpace, AbstractModelTarget, relaxed, usable_at
from ._numpyro_axes import axis_names

try:
    import numpyro  # noqa: F401 (to see whether it is there)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "`steinkern.interop.numpyro` needs NumPyro, which is not installed: pip install 'steinkern[numpyro]'"
    ) from error

from numpyro import handlers
from numpyro.distributions import Delta, biject_to
from numpyro.distributions.util import sum_rightmost
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import constrain_fn, potential_energy
from numpyro.primitives import Messenger


def from_model(model: Any, *args: Any, **kwargs: Any) -> "NumPyroTarget":
    """The posterior of a NumPyro model that is called with the given arguments.

    ```python
    target = steinkern.interop.numpyro.from_model(model, x, y)
    result = steinkern.fit(key, target, steinkern.svgd(), target.prior(prior_key, 100), num_steps=500)
    result.particles["scale"]                  # latent sites, in their own coordinates
    target.sites(result.particles)["effect"]   # deterministic sites too
    ```

    Particles move in the unconstrained coordinates of NumPyro's samplers, log-Jacobians included; bounds may depend on
    other sites. For `plate(name, size, subsample_size=b)` in the model, each step of `fit` draws b new indices, with
    replacement and the same for all particles; NumPyro scales the plate's log-likelihood by size/b. Methods that need
    all data (`result.scores()`) run the plates in full.

    Array arguments are arguments of the compiled step, so another target with data of the same shapes needs no
    compilation. A model that needs their values while it is traced (`len(np.unique(group))`) gets them as constants and
    is compiled for each data set.

    Args:
        model: a function with NumPyro's primitives, which may be wrapped by NumPyro's handlers.
        *args: arguments of the model.
        **kwargs: keyword arguments of the model.

    Raises:
        ValueError: the model has no latent sites, discrete ones, latent sites in a subsampled plate, or parameters
            (`numpyro.param`), which have no posterior.
    """
    check_callable("model", model, "a NumPyro model, a function of the arguments that follow it")
    _check_call(model, args, kwargs)
    traced_args, traced_kwargs = jax.tree.map(_as_argument, (args, kwargs))
    call = _Call(model, traced_args, traced_kwargs)
    if not _can_be_traced(call):
        call = _Call(partial(model, *args, **kwargs), (), {})
    free, sites, plates = _look(call)
    _check_sites(sites, plates)
    dtype = jnp.result_type(float)
    layout = Layout.of({name: jax.ShapeDtypeStruct(leaf.shape, dtype) for name, leaf in free.items()})
    shapes = tuple(tuple(jnp.shape(sites[name]["value"])) for name in layout.names)
    return NumPyroTarget(NumPyroSpace(layout, shapes, call), tuple((name, *sizes) for name, sizes in plates.items()))


def _as_argument(leaf: Any) -> Any:
    """Convert an array of numbers to a JAX array; other arguments, such as names, are passed on unchanged."""
    numbers = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"
    return as_array("the arguments of `model`", leaf) if numbers else leaf


def _check_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise where the arguments do not fit the model's signature; models without a signature pass."""
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"`model` is a function of {signature}: {error}. Give its arguments after it, as in `from_model(model, x, "
            "y)`."
        ) from None


class _Plates(Messenger):
    """Sets the rows that the subsampled plates of a model use: those of a batch, or all of them."""

    def __init__(self, fn: Any, batch: dict[str, Array] | None):
        super().__init__(fn)
        self.batch = batch
        self.sizes: dict[str, tuple[int, int]] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "plate" or msg["value"] is not None:
            return
        size, subsample_size = msg["args"]
        self.sizes[msg["name"]] = (size, subsample_size)
        if self.batch is None:
            msg["args"], msg["value"] = (size, None), jnp.arange(size)
        else:
            msg["value"] = self.batch[msg["name"]]


class _Unobserved(Messenger):
    """Draws the observed sites, each in the shape of its observation, and lists their names."""

    def __init__(self, fn: Any):
        super().__init__(fn)
        self.names: list[str] = []

    def process_message(self, msg: dict[str, Any]) -> None:
        if not _is_observation(msg):
            return
        self.names.append(msg["name"])
        # Without a plate the distribution has the shape of one observation, so it is expanded to that of all.
        shape = jnp.broadcast_shapes(jnp.shape(msg["value"]), tuple(msg["fn"].shape()))
        msg["fn"] = msg["fn"].expand(shape[: len(shape) - len(msg["fn"].event_shape)])
        msg["is_observed"], msg["value"] = False, None


class _Call(eqx.Module):
    """A model with its arguments: arrays are traced, all else is static."""

    model: Any = eqx.field(static=True)
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def trace(self, model: Any) -> dict[str, dict[str, Any]]:
        """The trace of a model, by site, under the arguments of this call."""
        with relaxed():
            return handlers.trace(model).get_trace(*self.args, **self.kwargs)

    def seeded(self, key: Any = 0, batch: dict[str, Array] | None = None) -> Any:
        """The model on the rows of `batch`, with a key to draw the sites that are not substituted."""
        return handlers.seed(_Plates(self.model, batch), key)

    def at(self, particle: PyTree, batch: dict[str, Array] | None = None) -> dict[str, dict[str, Any]]:
        """The trace of the model, by site, with its latent sites at the values of `particle`."""
        return self.trace(handlers.substitute(self.seeded(batch=batch), data=particle))


class NumPyroSpace(AbstractModelSpace):
    """The unconstrained coordinates of NumPyro's samplers."""

    layout: Layout
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    call: _Call

    def constrain(self, vector: Vector) -> PyTree:
        free = self.layout.unravel(vector)
        with relaxed():
            values = constrain_fn(self.call.seeded(), self.call.args, self.call.kwargs, free)
        return {name: values[name].astype(vector.dtype) for name in free}

    def unconstrain(self, particle: PyTree) -> Vector:
        trace = self.call.at(particle)
        with relaxed():
            free = {
                name: _bijection(trace[name]).inv(value).astype(self.layout.dtype) for name, value in particle.items()
            }
        return self.layout.ravel(free)

    def log_jacobian(self, vector: Vector) -> Scalar:
        free = self.layout.unravel(vector)
        trace = self.call.at(self.constrain(vector))
        total = jnp.zeros((), vector.dtype)
        with relaxed():
            for name, value in free.items():
                log_det = _bijection(trace[name]).log_abs_det_jacobian(value, trace[name]["value"])
                total = total + jnp.sum(sum_rightmost(log_det, jnp.ndim(log_det))).astype(vector.dtype)
        return total

    def check(self, particles: PyTree, argument: str = "particles") -> None:
        outside = [name for name, inside in _inside(self.call, particles).items() if not inside]
        if outside:
            raise ValueError(
                f"`{argument}` must lie inside their support; {', '.join(outside)} has values outside what the model "
                "allows. Give them in the sites' own, constrained coordinates."
            )


class NumPyroTarget(AbstractModelTarget):
    """The posterior of a NumPyro model, from `from_model`."""

    space: NumPyroSpace
    plates: tuple[tuple[str, int, int], ...] = eqx.field(static=True)
    """Name, size and subsample size of every plate that the model subsamples."""
    power: Any = eqx.field(default=1.0, converter=as_number, kw_only=True)
    support: PyTree = eqx.field(default=None, kw_only=True)
    shared: PyTree = eqx.field(default=None, kw_only=True)

    def log_joint(self, vector: Vector, batch: Batch) -> Scalar:
        call, free = self.space.call, self.space.layout.unravel(vector)
        with relaxed():
            return -potential_energy(call.seeded(batch=batch), call.args, call.kwargs, free).astype(vector.dtype)

    def batch(self, data: Batch, batch_size: int | None, key: Key | None = None) -> Batch:
        if not self.plates:
            return None
        keys = [None] * len(self.plates) if key is None else list(jr.split(key, len(self.plates)))
        return {
            name: jnp.arange(rows) if own is None else jr.randint(own, (rows,), 0, size)
            for (name, size, rows), own in zip(self.plates, keys, strict=True)
        }

    def sampled_rows(self, data: Batch, batch_size: int | None) -> dict[str, tuple[int, int]]:
        return {name: (size, rows) for name, size, rows in self.plates}

    def batch_of(self, data: Batch, rows: dict[str, Array]) -> Batch:
        return rows

    def draw_prior(self, key: Key, num_particles: int) -> dict[str, Array]:
        """Independent draws of the latent sites from the model's prior.

        Sites with an improper prior are drawn uniformly from (−2, 2) in unconstrained coordinates, as NumPyro
        initialises its chains.
        """
        return _prior(self, key, None, num_particles)

    def draw_attempt(self, key: Key, attempt: int, num_particles: int) -> dict[str, Array]:
        return _prior(self, key, jax.device_put(np.uint32(attempt)), num_particles)

    def draw_first(self, key: Key, attempt: int, num_particles: int) -> tuple[dict[str, Array], Bool[Array, " n"]]:
        return _draw_first(self, key, jax.device_put(np.uint32(attempt)), num_particles)

    def sites(self, particles: PyTree) -> dict[str, Array]:
        """The latent and the deterministic sites at a batch of particles, plates in full."""
        return _sites(self, particles)

    def observed(self) -> dict[str, Array]:
        return _observed(self.space.call)

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """The names of the sites' axes: those of their plates, and of `infer={"event_dims": [...]}`."""
        return axis_names(_look(self.space.call)[1])

    def log_likelihoods(self, points: Points, data: Batch = None) -> dict[str, Array]:
        """The log-likelihood of every observation, plates in full, without the scale of a subsampled plate."""

        def one(vector: Vector) -> dict[str, Array]:
            trace = self.space.call.at(self.space.constrain(vector))
            sites = {name: site for name, site in trace.items() if _is_observation(site)}
            with relaxed():
                return {name: jnp.asarray(site["fn"].log_prob(site["value"])) for name, site in sites.items()}

        return jax.lax.map(one, points)

    def predictive(self, key: Key, particles: PyTree) -> dict[str, Array]:
        """One draw of every observed site for each particle, plates in full."""
        n = len(jax.tree_util.tree_leaves(particles)[0])
        return _predictive(self, key, n, particles)


def _bijection(site: dict[str, Any]) -> Any:
    return biject_to(site["fn"].support)


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _is_observation(site: dict[str, Any]) -> bool:
    """Whether a site holds data; `numpyro.factor` makes an observed site without data."""
    return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("is_auxiliary", False)


def _first_value(site: dict[str, Any]) -> Any:
    """An initial value for a site with an improper prior; `None`, which means a draw, for other sites."""
    if not _is_latent(site) or site["value"] is not None:
        return None
    try:
        jax.eval_shape(lambda key: site["fn"](rng_key=key), jr.key(0))
    except NotImplementedError:  # an improper prior
        return init_to_uniform(site)
    return None


def _drawn(call: _Call, key: Any) -> dict[str, dict[str, Any]]:
    return call.trace(handlers.substitute(call.seeded(key), substitute_fn=_first_value))


def _can_be_traced(call: _Call) -> bool:
    """Whether the model runs with traced array arguments."""
    leaves = [leaf for leaf in jax.tree_util.tree_leaves((call.args, call.kwargs)) if not eqx.is_array(leaf)]
    try:
        hash(tuple(leaves))
        eqx.filter_eval_shape(lambda own: {n: s["value"] for n, s in _drawn(own, 0).items() if _is_latent(s)}, call)
    except (TypeError, jax.errors.JAXTypeError):
        return False
    return True


def _look(call: _Call) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, tuple[int, int]]]:
    """The shapes of the latent sites in unconstrained coordinates, all sites, and the subsampled plates."""
    seen: dict[str, Any] = {}

    def run(own: _Call) -> dict[str, Array]:
        plates = _Plates(own.model, None)
        drawn = handlers.substitute(handlers.seed(plates, 0), substitute_fn=_first_value)
        seen["sites"] = own.trace(drawn)
        seen["plates"] = plates.sizes
        with relaxed():
            return {
                name: jnp.asarray(_bijection(site).inv(site["value"]))
                for name, site in seen["sites"].items()
                if _is_latent(site) and not site["fn"].support.is_discrete
            }

    free = eqx.filter_eval_shape(run, call)
    return free, seen["sites"], seen["plates"]


def _check_sites(sites: dict[str, dict[str, Any]], plates: dict[str, tuple[int, int]]) -> None:
    latent = {name: site for name, site in sites.items() if _is_latent(site)}
    discrete = [name for name, site in latent.items() if site["fn"].support.is_discrete]
    if discrete:
        raise ValueError(
            f"`model` must have continuous latent sites, but {_listed(discrete)} discrete: particles follow gradients. "
            "Sum such sites out of the model (a mixture by `numpyro.distributions.MixtureSameFamily`), or fix them by "
            "`numpyro.handlers.condition`."
        )
    parameters = [name for name, site in sites.items() if site["type"] == "param"]
    if parameters:
        raise ValueError(
            f"`model` must not have parameters without a prior, but {_listed(parameters)} a `numpyro.param`, which "
            "particles would leave at its first value. Give it a prior (`numpyro.sample`), or fix it on purpose: "
            f"`numpyro.handlers.block(numpyro.handlers.substitute(model, data={{{parameters[0]!r}: value}}), "
            f"hide={parameters!r})`."
        )
    if not latent:
        raise ValueError("`model` must have at least one latent site, got none: every `sample` has `obs=`.")
    points = [name for name, site in latent.items() if isinstance(site["fn"], Delta)]
    if points:
        raise ValueError(
            f"`model` must not sample what has no spread, but {_listed(points)} a `Delta`: use `numpyro.deterministic`."
        )
    for name, site in latent.items():
        cut = [frame.name for frame in site["cond_indep_stack"] if frame.name in plates]
        if cut:
            raise ValueError(
                f"`model` has the latent site '{name}' inside the subsampled plate '{cut[0]}': a particle holds "
                "a value for every row, a minibatch would see only some. Leave out that plate's `subsample_size`."
            )


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) + (" is" if len(names) == 1 else " are")


@compiled_quickly
def _prior(target: NumPyroTarget, key: Key, attempt: UInt32[Array, ""] | None, num_particles: int) -> dict[str, Array]:
    layout = target.space.layout
    key = key if attempt is None else jr.fold_in(key, attempt)

    def draw(key: Key) -> dict[str, Array]:
        trace = _drawn(target.space.call, key)
        return {name: trace[name]["value"].astype(layout.dtype) for name in layout.names}

    return jax.vmap(draw)(jr.split(key, num_particles))


@compiled_quickly
def _draw_first(
    target: NumPyroTarget, key: Key, attempt: UInt32[Array, ""], num_particles: int
) -> tuple[dict[str, Array], Bool[Array, " n"]]:
    particles = _prior(target, key, attempt, num_particles)
    return particles, usable_at(target, particles)


@compiled_quickly
def _sites(target: NumPyroTarget, particles: PyTree) -> dict[str, Array]:
    def one(particle: PyTree) -> dict[str, Array]:
        trace = target.space.call.at(particle)
        derived = {name: jnp.asarray(site["value"]) for name, site in trace.items() if site["type"] == "deterministic"}
        return {**particle, **derived}

    return jax.vmap(one)(particles)


@compiled_quickly
def _observed(call: _Call) -> dict[str, Array]:
    sites = _drawn(call, 0)
    return {name: jnp.asarray(site["value"]) for name, site in sites.items() if _is_observation(site)}


@compiled_quickly
def _predictive(target: NumPyroTarget, key: Key, n: int, particles: PyTree) -> dict[str, Array]:
    call = target.space.call

    def one(key: Key, particle: PyTree) -> dict[str, Array]:
        model = _Unobserved(_Plates(call.model, None))
        trace = call.trace(handlers.substitute(handlers.seed(model, key), data=particle))
        return {name: trace[name]["value"] for name in model.names}

    return jax.vmap(one)(jr.split(key, n), particles)


@compiled_quickly
def _inside(call: _Call, particles: PyTree) -> dict[str, Array]:
    """Whether all values of each site lie in its support."""

    def one(particle: PyTree) -> dict[str, Array]:
        trace = call.at(particle)
        with relaxed():
            return {name: jnp.all(trace[name]["fn"].support(value)) for name, value in particle.items()}

    return {name: jnp.all(inside) for name, inside in jax.vmap(one)(particles).items()}
