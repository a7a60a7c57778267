"""PyMC models as targets: PyMC's graph, compiled to JAX by PyTensor.

PyTensor switches JAX to double precision when this module is first imported, unless its `floatX` is float32.
"""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..core.extras import install_command
from ..core.particles import Layout
from ..core.types import Batch, Key, Points, PyTree, Scalar, Vector
from ._model import AbstractModelSpace, AbstractModelTarget, standard_promotion

try:
    _FLAGS = os.environ.get("XLA_FLAGS", "")
    import pymc as pm
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"`steinkern.interop.pymc` needs PyMC, which is not installed: {install_command('pymc')}"
    ) from error

from pymc.pytensorf import compile as pytensor_compile
from pymc.sampling.jax import get_jaxified_graph
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace

# Importing PyMC's JAX module requests a hundred CPU devices from XLA, which `device_mesh` would all use.
os.environ["XLA_FLAGS"] = _FLAGS

# For few draws, interpreting the graph takes less time than compiling it.
_INTERPRETED = Mode(linker="py", optimizer="fast_compile")


def from_model(model: Any) -> "PyMCTarget":
    """The posterior of a PyMC model.

    ```python
    target = steinkern.interop.pymc.from_model(model)
    result = steinkern.fit(key, target, steinkern.svgd(), target.prior(prior_key, 100), num_steps=500)
    result.particles["scale"]                  # free variables, in constrained coordinates
    target.sites(result.particles)["effect"]   # deterministics too
    ```

    Particles move in the unconstrained coordinates of PyMC's samplers, log-Jacobians included; bounds may depend on
    other variables. The model's data are constants of the compiled step, so another data set needs another compilation.

    Args:
        model: a `pymc.Model` whose free variables are continuous.

    Raises:
        ValueError: the model has no free variables or discrete ones, or its graph draws minibatches.
    """
    if not isinstance(model, pm.Model):
        raise ValueError(f"`model` must be a `pymc.Model`, got {model!r} of type {type(model).__name__}.")
    variables = list(model.free_RVs)
    discrete = [variable.name for variable in variables if not variable.dtype.startswith("float")]
    if discrete:
        raise ValueError(
            f"`model` must have continuous free variables, but {', '.join(map(repr, discrete))} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete: particles follow gradients. Sum such variables out of "
            "the model (a mixture by `pymc.Mixture`), or observe them."
        )
    if not variables:
        raise ValueError("`model` must have at least one free variable, got none: every variable is observed.")
    functions = _Functions(model, variables)
    start = model.initial_point()
    names = tuple(variable.name for variable in variables)
    dtype = jnp.result_type(float)
    free = {
        variable.name: jax.ShapeDtypeStruct(np.shape(start[model.rvs_to_values[variable].name]), dtype)
        for variable in variables
    }
    layout = Layout.of(free)
    draws = dict(zip(names, pm.draw(variables, mode=_INTERPRETED, random_seed=0), strict=True))
    shapes = tuple(np.shape(draws[name]) for name in layout.names)
    return PyMCTarget(PyMCSpace(layout, shapes, names, functions))


class _Functions:
    """A model's graph as JAX functions of lists, in the order of its free variables."""

    def __init__(self, model: Any, variables: list[Any]):
        self.model = model
        self.variables = variables
        values = [model.rvs_to_values[variable] for variable in variables]
        self.log_joint = _jax(values, [model.logp()])
        self.log_jacobian = _jax(values, [model.logp() - model.logp(jacobian=False)])
        self.constrain = _jax(values, model.replace_rvs_by_values(variables))
        # A transform may depend on other variables (a bound), so all of them are inputs and none is drawn.
        self.inputs = [variable.clone(name=f"{variable.name}_value") for variable in variables]
        self.clones = dict(zip(variables, self.inputs, strict=True))
        forward = [_forward(variable, model.rvs_to_transforms[variable]) for variable in variables]
        self.unconstrain = _jax(self.inputs, clone_replace(forward, self.clones))
        # The whole of a variable with missing entries is a deterministic of its observed and its free part.
        observed = {variable: model.rvs_to_values[variable] for variable in model.observed_RVs}
        self.deterministics = _jax(self.inputs, clone_replace(list(model.deterministics), {**self.clones, **observed}))


def _forward(variable: Any, transform: Any) -> Any:
    # `copy` gives a variable without a transform a separate node, which can be replaced.
    return variable.copy() if transform is None else transform.forward(variable, *variable.owner.inputs)


def _jax(inputs: list[Any], outputs: list[Any]) -> Callable[..., Any]:
    try:
        return get_jaxified_graph(inputs=inputs, outputs=outputs) if outputs else lambda *values: ()
    except ValueError as error:
        if "RandomType" not in str(error):
            raise
        raise ValueError(
            "`model` must be a deterministic function of its variables, but its graph draws random numbers, as "
            "`pymc.Minibatch` does. Give it all data."
        ) from error


class PyMCSpace(AbstractModelSpace):
    """The unconstrained coordinates of PyMC's samplers."""

    layout: Layout
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    functions: Any = eqx.field(static=True)

    def in_order(self, values: PyTree) -> list[Array]:
        """The values of a dictionary in the model's order."""
        return [values[name] for name in self.names]

    def constrain(self, vector: Vector) -> PyTree:
        with standard_promotion():
            values = self.functions.constrain(*self.in_order(self.layout.unravel(vector)))
        return {name: value.astype(vector.dtype) for name, value in zip(self.names, values, strict=True)}

    def unconstrain(self, particle: PyTree) -> Vector:
        with standard_promotion():
            values = self.functions.unconstrain(*self.in_order(particle))
            free = {name: value.astype(self.layout.dtype) for name, value in zip(self.names, values, strict=True)}
        return self.layout.ravel(free)

    def log_jacobian(self, vector: Vector) -> Scalar:
        with standard_promotion():
            return self.functions.log_jacobian(*self.in_order(self.layout.unravel(vector)))[0].astype(vector.dtype)

    def inside(self, particles: PyTree) -> dict[str, Any]:
        return self.survives_round_trip(particles)


class PyMCTarget(AbstractModelTarget):
    """The posterior of a PyMC model, from `from_model`."""

    space: PyMCSpace

    def __repr__(self) -> str:
        """The free variables: a model has no name of its own."""
        return f"PyMCTarget({', '.join(self.space.names)})"

    def log_joint(self, vector: Vector, batch: Batch) -> Scalar:
        free = self.space.in_order(self.space.layout.unravel(vector))
        with standard_promotion():
            return jnp.reshape(self.space.functions.log_joint(*free)[0], ()).astype(vector.dtype)

    def draw_prior(self, key: Key, num_particles: int) -> dict[str, Array]:
        """Independent draws of the free variables from the model's prior."""
        variables = self.space.functions.variables
        draws = pm.draw(variables, draws=num_particles, mode=_INTERPRETED, random_seed=_seed(key))
        if num_particles == 1:  # PyMC returns a single draw without its axis
            draws = [np.asarray(value)[None] for value in draws]
        values = zip(self.space.names, draws, strict=True)
        return {name: jnp.asarray(np.asarray(value), self.space.layout.dtype) for name, value in values}

    def sites(self, particles: PyTree) -> dict[str, Array]:
        """The free variables and the deterministics at a batch of particles."""
        functions = self.space.functions
        with standard_promotion():
            derived = jax.vmap(lambda particle: functions.deterministics(*self.space.in_order(particle)))(particles)
        names = [variable.name for variable in functions.model.deterministics]
        return {
            **{name: jnp.asarray(value) for name, value in particles.items()},
            **dict(zip(names, derived, strict=True)),
        }

    def observed(self) -> dict[str, Array]:
        model = self.space.functions.model
        return {
            variable.name: jnp.asarray(model.rvs_to_values[variable].eval(mode=_INTERPRETED))
            for variable in model.observed_RVs
        }

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """The names of the variables' axes, as the model declares them by `dims=`."""
        known = self.space.functions.model.named_vars_to_dims
        return {str(name): tuple(None if dim is None else str(dim) for dim in dims) for name, dims in known.items()}

    def coords(self) -> dict[str, Any]:
        """The labels of the model's `coords`."""
        known = self.space.functions.model.coords
        return {str(name): np.asarray(labels) for name, labels in known.items() if labels is not None}

    def log_likelihoods(self, points: Points) -> dict[str, Array]:
        """The log-likelihood of every observation."""
        functions = self.space.functions
        observed = list(functions.model.observed_RVs)
        if not observed:
            return {}
        values = [functions.model.rvs_to_values[variable] for variable in functions.variables]
        with jax.ensure_compile_time_eval():  # constants of the graph stay concrete: the mask of missing entries is one
            terms = _jax(values, functions.model.logp(vars=observed, sum=False))

        def one(vector: Vector) -> dict[str, Array]:
            with standard_promotion():
                each = terms(*self.space.in_order(self.space.layout.unravel(vector)))
            return {variable.name: term for variable, term in zip(observed, each, strict=True)}

        return jax.lax.map(one, points)

    def predictive(self, key: Key, particles: PyTree) -> dict[str, Array]:
        """One draw of every observed variable for each particle."""
        functions = self.space.functions
        observed = list(functions.model.observed_RVs)
        outputs = clone_replace(observed, functions.clones)
        draw = pytensor_compile(
            functions.inputs, outputs, mode=_INTERPRETED, random_seed=_seed(key), on_unused_input="ignore"
        )
        columns = [np.asarray(value) for value in self.space.in_order(particles)]
        draws = [draw(*row) for row in zip(*columns, strict=True)]
        return {
            variable.name: jnp.asarray(np.stack(values))
            for variable, values in zip(observed, zip(*draws, strict=True), strict=True)
        }


def _seed(key: Key) -> int:
    return int(jr.randint(key, (), 0, 2**31 - 1))
