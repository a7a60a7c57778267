"""A NumPyro model with its arguments: its sites, their shapes, and the checks of what `fit` supports."""

import contextlib
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from numpyro import handlers
from numpyro.distributions import Delta, biject_to
from numpyro.infer.initialization import init_to_uniform
from numpyro.primitives import Messenger

from ..core.arrays import as_array
from ..core.types import PyTree
from ._model import standard_promotion


def as_argument(leaf: Any) -> Any:
    """Convert an array of numbers to a JAX array; other arguments, such as names, are passed on unchanged."""
    numbers = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"
    return as_array("the arguments of `model`", leaf) if numbers else leaf


class Plates(Messenger):
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


class Unobserved(Messenger):
    """Draws the observed sites, each in the shape of its observation, and lists their names."""

    def __init__(self, fn: Any):
        super().__init__(fn)
        self.names: list[str] = []

    def process_message(self, msg: dict[str, Any]) -> None:
        if not is_observation(msg):
            return
        self.names.append(msg["name"])
        # Without a plate the distribution has the shape of one observation, so it is expanded to that of all.
        shape = jnp.broadcast_shapes(jnp.shape(msg["value"]), tuple(msg["fn"].shape()))
        msg["fn"] = msg["fn"].expand(shape[: len(shape) - len(msg["fn"].event_shape)])
        msg["is_observed"], msg["value"] = False, None


class _FirstSite(Messenger):
    """Ends a model at its first site."""

    reached = False

    def process_message(self, msg: dict[str, Any]) -> None:
        self.reached = True
        raise InterruptedError


def is_model(function: Any) -> bool:
    """Whether a function can be called without arguments and then comes to a site of NumPyro.

    Nothing is computed, and what follows the first site does not run.
    """
    first_site = _FirstSite()
    with contextlib.suppress(Exception):  # such as those of a log density whose argument has a default
        inspect.signature(function).bind()
        with first_site, standard_promotion():
            jax.eval_shape(function)
    return first_site.reached


class ModelCall(eqx.Module):
    """A model with its arguments: arrays are traced, all else is static."""

    model: Any = eqx.field(static=True)
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def trace(self, model: Any) -> dict[str, dict[str, Any]]:
        """The trace of a model, by site, under the arguments of this call."""
        with standard_promotion():
            return handlers.trace(model).get_trace(*self.args, **self.kwargs)

    def seeded(self, key: Any = 0, batch: dict[str, Array] | None = None) -> Any:
        """The model on the rows of `batch`, with a key to draw the sites that are not substituted."""
        return handlers.seed(Plates(self.model, batch), key)

    def at(self, particle: PyTree) -> dict[str, dict[str, Any]]:
        """The trace of the model, by site, with its latent sites at the values of `particle`."""
        return self.trace(handlers.substitute(self.seeded(), data=particle))


def bijection_of(site: dict[str, Any]) -> Any:
    """The map from unconstrained coordinates onto the support of a latent site."""
    with contextlib.suppress(NotImplementedError):  # NumPyro has no map onto this support
        if not jnp.iscomplexobj(site["value"]):
            return biject_to(site["fn"].support)
    raise ValueError(
        f"`model` must have latent sites with a map from real coordinates, but NumPyro has none for {site['name']!r}. "
        "Write it as a function of other sites by `numpyro.deterministic`, or use `numpyro.handlers.reparam`."
    )


def is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def is_observation(site: dict[str, Any]) -> bool:
    """Whether a site holds data; `numpyro.factor` makes an observed site without data."""
    return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("is_auxiliary", False)


def _first_value(site: dict[str, Any]) -> Any:
    """An initial value for a site with an improper prior; `None`, which means a draw, for other sites."""
    if not is_latent(site) or site["value"] is not None:
        return None
    try:
        jax.eval_shape(lambda key: site["fn"](rng_key=key), jr.key(0))
    except NotImplementedError:  # an improper prior
        return bijection_of(site) and init_to_uniform(site)
    return None


def draw_sites(call: ModelCall, key: Any) -> dict[str, dict[str, Any]]:
    return call.trace(handlers.substitute(call.seeded(key), substitute_fn=_first_value))


def trace_shapes(call: ModelCall) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, tuple[int, int]]]:
    """The shapes of the latent sites in unconstrained coordinates, all sites, and the subsampled plates."""
    traced: dict[str, Any] = {}

    def run(call: ModelCall) -> dict[str, Array]:
        plates = Plates(call.model, None)
        model = handlers.substitute(handlers.seed(plates, 0), substitute_fn=_first_value)
        traced["sites"] = call.trace(model)
        traced["plates"] = plates.sizes
        with standard_promotion():
            return {
                name: jnp.asarray(bijection_of(site).inv(site["value"]))
                for name, site in traced["sites"].items()
                if is_latent(site) and not site["fn"].support.is_discrete
            }

    free = eqx.filter_eval_shape(run, call)
    return free, traced["sites"], traced["plates"]


def check_sites(sites: dict[str, dict[str, Any]], plates: dict[str, tuple[int, int]]) -> None:
    """Raise where particles cannot be moved by gradients of the model's density."""
    for name, site in sites.items():
        if site["type"] == "param":
            raise ValueError(
                f"`model` must not have parameters without a prior, but {name!r} is a `numpyro.param`, which particles "
                "would leave at its first value. Give it a prior (`numpyro.sample`), or fix it on purpose: "
                f"`numpyro.handlers.block(numpyro.handlers.substitute(model, data={{{name!r}: value}}), "
                f"hide=[{name!r}])`."
            )
        if not is_latent(site):
            continue
        if site["fn"].support.is_discrete:
            raise ValueError(
                f"`model` must have continuous latent sites, but {name!r} is discrete: particles follow gradients. "
                "Sum such sites out of the model (a mixture by `numpyro.distributions.MixtureSameFamily`, a chain of "
                "states by the forward algorithm, a `jax.lax.scan` over time whose log probability is a "
                "`numpyro.factor`), or fix them by `numpyro.handlers.condition`."
            )
        if isinstance(site["fn"], Delta):
            raise ValueError(
                f"`model` must not sample what has no spread, but {name!r} is a `Delta`: use `numpyro.deterministic`."
            )
        cut = [frame.name for frame in site["cond_indep_stack"] if frame.name in plates]
        if cut:
            raise ValueError(
                f"`model` has the latent site {name!r} inside the subsampled plate {cut[0]!r}: a particle has a value "
                "for every row, and a minibatch uses only some. Leave out that plate's `subsample_size`."
            )
    if not any(map(is_latent, sites.values())):
        raise ValueError("`model` must have at least one latent site, got none: every `sample` has `obs=`.")


def axis_names(sites: dict[str, dict[str, Any]]) -> dict[str, tuple[str | None, ...]]:
    """The name of every axis of the sites of a trace; `None` for an axis without one.

    An axis of a plate has the name of the plate. The names in `infer={"event_dims": [...]}` of a sample site, which is
    ArviZ's convention, name the axes of one draw of its distribution. A deterministic site has no distribution: its
    first axes are taken for those of the plates around it.
    """
    named = ("sample", "deterministic")
    return {name: _axes_of(site) for name, site in sites.items() if site["type"] in named}


def _axes_of(site: dict[str, Any]) -> tuple[str | None, ...]:
    shape, plates = jnp.shape(site["value"]), site["cond_indep_stack"]
    if site["type"] == "sample":
        num_event = len(site["fn"].event_shape)
        event = list(site["infer"].get("event_dims") or ())
    else:
        num_event = len(shape) - max((-frame.dim for frame in plates), default=0)
        event = []
    names: list[str | None] = [None] * len(shape)
    for frame in plates:
        axis = len(shape) - num_event + frame.dim
        if 0 <= axis < len(shape) and shape[axis] == frame.size:
            names[axis] = str(frame.name)
    if event and len(event) == num_event <= len(shape):
        names[len(shape) - num_event :] = event
    # An array cannot have two axes of one name.
    return tuple(None if name in names[:i] else name for i, name in enumerate(names))
