"""Simulation-based calibration: whether an inference recovers the parameters that its data were simulated from.

Talts, Betancourt, Simpson, Vehtari and Gelman, Validating Bayesian inference algorithms with simulation-based
calibration, 2018.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from tqdm.auto import tqdm

from ..core.arrays import as_concrete_key
from ..core.keywords import helpful_keywords
from ..core.particles import Layout
from ..core.types import Batch, Key, KeyLike, Keys, PyTree, check_callable, check_count, is_concrete, is_real_number
from ..results.plot.ranks import rank_ecdf
from ..results.result import Result
from ..results.uniformity import departure, uniformity_test

if TYPE_CHECKING:
    import matplotlib.figure

_AT_ONCE = 50  # simulations in one batch of a traced inference
_MOST_PANELS = 16
_NAMED = 3


@dataclass(frozen=True, eq=False)
class Calibration:
    """The ranks of simulation-based calibration, and their test; from `sbc`."""

    ranks: np.ndarray
    """(num_simulations, parameters): how many posterior draws are below the true value, in 0, …, `num_ranks` − 1."""
    names: tuple[str, ...]
    """The names of the parameters' coordinates."""
    num_ranks: int
    """The number of possible ranks, one more than the number of draws that a true value is compared with."""
    p_values: np.ndarray
    """(parameters,) p-values of each coordinate's ranks being uniform, by the largest deviation of their distribution
    function (Säilynoja et al., 2022): see `UniformityTest`."""
    parameters: PyTree
    """The true parameters of every simulation, with a leading axis."""
    level: float
    """The probability with which an exact inference passes."""
    traced: bool
    """Whether the inferences ran in batches of one compiled program, by `vmap`, or one after another."""

    @property
    def p_value(self) -> float:
        """The smallest of the `p_values` times their number (Bonferroni), at most 1."""
        return min(1.0, len(self.p_values) * float(np.min(self.p_values)))

    @property
    def passed(self) -> bool:
        """Whether `p_value` is at least 1 − `level`."""
        return self.p_value >= 1 - self.level

    def sentence(self) -> str:
        """The verdict in one line."""
        number, parameters = self.ranks.shape
        tested = f"{number} simulations, {parameters} parameter{'s' if parameters > 1 else ''}, p = {self.p_value:.2g}"
        if self.passed:
            return f"Calibrated as far as this can tell: the ranks are uniform ({tested})."
        order = np.argsort(self.p_values, kind="stable")
        failing = [i for i in order if len(self.p_values) * self.p_values[i] < 1 - self.level]
        listed = []
        for i in failing[:_NAMED]:
            why = departure(self.ranks[:, i], self.num_ranks)
            listed.append(f"{self.names[i]} ({why})" if why else self.names[i])
        more = f" and {len(failing) - _NAMED} more" if len(failing) > _NAMED else ""
        return f"NOT CALIBRATED: the ranks are not uniform for {', '.join(listed)}{more} ({tested})."

    def plot(self, names: Sequence[str] | None = None) -> "matplotlib.figure.Figure":
        """The distribution functions of the ranks, minus the uniform one, with simultaneous bands.

        Args:
            names: the coordinates to show; by default the 16 with the smallest p-values, in the order of `names`.
        """
        if names is None:
            shown = np.sort(np.argsort(self.p_values, kind="stable")[:_MOST_PANELS])
        else:
            unknown = [name for name in names if name not in self.names]
            if unknown:
                raise ValueError(f"`names` must be of {', '.join(self.names)}, got {unknown[0]!r}.")
            shown = np.array([self.names.index(name) for name in names], int)
        # The band of all coordinates together: what is outside of it fails the test.
        level = 1 - (1 - self.level) * len(shown) / len(self.names)
        return rank_ecdf({self.names[i]: self.ranks[:, i] for i in shown}, self.num_ranks, level=level)

    def __repr__(self) -> str:
        return f"Calibration: {self.sentence()}"


@helpful_keywords
def sbc(
    key: KeyLike,
    prior_draw: Callable[[Key], PyTree],
    simulate: Callable[[Key, PyTree], Batch],
    infer: Callable[[Key, Batch], Any],
    num_simulations: int = 200,
    *,
    num_ranks: int | None = None,
    batch_size: int | None = None,
    level: float = 0.95,
    progress: bool | None = None,
) -> Calibration:
    """Simulation-based calibration: does `infer` recover what its data were simulated from?

    Draw parameters θ from the prior and data y given θ, and infer θ from y. If the inference is exact, θ and its
    posterior draws are draws of the same distribution, so that the rank of θ among them is uniform. Draws that are too
    close together give ranks at both ends; draws that are too large give small ranks. Ranks are tested for each
    coordinate of the parameters, by simultaneous bands of their distribution function.

    ```python
    def infer(key, data):
        return sk.sample(key, posterior, start=0.0, data=data)     # `posterior` takes the data as an argument

    calibration = sk.sbc(jax.random.key(0), prior_draw, simulate, infer, num_simulations=100)
    print(calibration.sentence())
    calibration.plot().savefig("sbc.png")
    ```

    Where `infer` can be traced by JAX, as a function of arrays can, simulations run in batches by `vmap`. `fit` and
    `sample` cannot: they run one after another. Define the target once, outside of `infer`, and pass the data as an
    argument (`data=data`); then every simulation after the first uses the programs that the first has compiled.

    The prior of the inference's model must be that of `prior_draw`; otherwise the ranks are not uniform. Uniform ranks
    are necessary, not sufficient: an inference that returns draws of the prior, whatever the data, has them too.

    Args:
        key: PRNG key.
        prior_draw: `prior_draw(key)`, one draw of the parameters: a pytree of numbers and arrays.
        simulate: `simulate(key, parameters)`, data given the parameters. They must have the same shapes each time.
        infer: `infer(key, data)`, posterior draws: the pytree of the parameters with a leading axis of draws on every
            leaf, or the `Result` of `fit` or `sample`, whose particles are taken. It must draw random numbers by its
            key alone.
        num_simulations: the number of simulated data sets. With 200, one coordinate whose standard deviation is 20
            percent too small fails nine times in ten.
        num_ranks: the number of possible ranks, for a comparison with `num_ranks` − 1 of the draws, which are chosen at
            random. By default all draws are used.
        batch_size: the number of simulations run at once where `infer` can be traced, 50 by default; 1 runs them one
            after another, and does not trace `infer`.
        level: the probability with which an exact inference passes.
        progress: show a progress bar; by default where there is a terminal.
    """
    key = as_concrete_key(key)
    check_callable("prior_draw", prior_draw, "a function of a key that draws parameters")
    check_callable("simulate", simulate, "a function of a key and the parameters that draws data")
    check_callable("infer", infer, "a function of a key and data that gives posterior draws")
    check_count("num_simulations", num_simulations, least=2)
    if num_ranks is not None:
        check_count("num_ranks", num_ranks, least=2)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if not (is_concrete(level) and is_real_number(level) and 0 < level < 1):
        raise ValueError(f"`level` must lie between 0 and 1, got {level!r}.")
    simulation_key, inference_key, choice_key = jr.split(key, 3)
    parameters, data = _simulate(jr.split(simulation_key, num_simulations), prior_draw, simulate)
    generator = np.random.default_rng(np.asarray(jr.key_data(choice_key)).ravel())
    keys = jr.split(inference_key, num_simulations)
    at_once = min(_AT_ONCE if batch_size is None else batch_size, num_simulations)
    traced = at_once > 1 and _can_trace(infer, keys[0], jax.tree.map(lambda leaf: leaf[0], data))
    run = _run_batches(infer, keys, data, at_once) if traced else _run_one_by_one(infer, keys, data)
    rows = []
    with tqdm(total=num_simulations, disable=None if progress is None else not progress, leave=False) as bar:
        for i, draws in enumerate(run):
            true = jax.tree.map(lambda leaf, i=i: leaf[i], parameters)
            rows.append(_ranks(true, draws, num_ranks, generator, i))
            bar.update()
    ranks = np.stack([row for row, _ in rows])
    numbers = {number for _, number in rows}
    if len(numbers) > 1:
        raise ValueError(
            f"`infer` must give the same number of draws each time, got {min(numbers) - 1} to {max(numbers) - 1}. Give "
            "`num_ranks` to compare with as many of them each time."
        )
    number = numbers.pop()
    test = uniformity_test(num_simulations, number)
    p_values = np.array([test.p_value(column) for column in ranks.T])
    return Calibration(ranks, _names(parameters), number, p_values, parameters, float(level), traced)


def _simulate(keys: Keys, prior_draw: Any, simulate: Any) -> tuple[PyTree, Batch]:
    """Parameters and data of all simulations, as NumPy arrays with a leading axis."""

    def one(key: Key) -> tuple[PyTree, Batch]:
        prior_key, data_key = jr.split(key)
        parameters = prior_draw(prior_key)
        return parameters, simulate(data_key, parameters)

    if _can_trace(one, keys[0]):
        drawn = jax.jit(jax.vmap(one))(keys)
    else:
        each = [one(key) for key in _unstack(keys)]
        try:
            drawn = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *each)
        except ValueError as error:
            raise ValueError(
                f"`prior_draw` and `simulate` must give arrays of the same shapes each time, got others: {error}."
            ) from error
    parameters, data = jax.tree.map(np.asarray, drawn)
    if not sum(leaf[0].size for leaf in jax.tree.leaves(parameters)):
        raise ValueError(f"`prior_draw` must give at least one number, got {parameters!r}.")
    return parameters, data


def _can_trace(function: Any, *arguments: Any) -> bool:
    """Whether JAX can trace a function of these arguments. An error of its own is raised again when it runs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jax.eval_shape(function, *arguments)
    except Exception:
        return False
    return True


def _unstack(keys: Keys) -> list[Key]:
    """The single keys of an array, without compiling a slice for each index."""
    data, kind = np.asarray(jr.key_data(keys)), jr.key_impl(keys)
    return [jr.wrap_key_data(jnp.asarray(row), impl=kind) for row in data]


def _run_one_by_one(infer: Any, keys: Keys, data: Batch) -> Any:
    """The draws of one simulation after the other."""
    for i, key in enumerate(_unstack(keys)):
        draws = infer(key, jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), data))
        yield jax.tree.map(np.asarray, draws.particles if isinstance(draws, Result) else draws)


def _run_batches(infer: Any, keys: Keys, data: Batch, at_once: int) -> Any:
    """The draws of one simulation after the other, computed in batches of one program."""
    program = jax.jit(jax.vmap(infer))
    number = len(keys)
    for first in range(0, number, at_once):
        rows = np.minimum(np.arange(first, first + at_once), number - 1)  # the last batch repeats the last simulation
        batch = program(keys[rows], jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf[rows]), data))
        draws = jax.tree.map(np.asarray, batch)
        for i in range(min(at_once, number - first)):
            yield jax.tree.map(lambda leaf, i=i: leaf[i], draws)


def _ranks(
    true: PyTree, draws: PyTree, num_ranks: int | None, generator: np.random.Generator, simulation: int
) -> tuple[np.ndarray, int]:
    """The ranks of the true parameters among the draws, ties broken at random, and the number of possible ranks."""
    values, columns = jax.tree.leaves(true), jax.tree.leaves(draws)
    structure: Any = jax.tree.structure(true)
    drawn_structure: Any = jax.tree.structure(draws)
    shapes, drawn_shapes = ([np.shape(leaf) for leaf in leaves] for leaves in (values, columns))
    matching = structure == drawn_structure and all(
        len(drawn) == len(shape) + 1 and drawn[1:] == shape and drawn[0] == drawn_shapes[0][0]
        for shape, drawn in zip(shapes, drawn_shapes, strict=True)
    )
    if not matching:
        raise ValueError(
            f"`infer` must give the parameters of `prior_draw`, {structure} of shapes {shapes}, with a leading axis of "
            f"draws, got {drawn_structure} of shapes {drawn_shapes}."
        )
    number = drawn_shapes[0][0]
    wanted = number if num_ranks is None else num_ranks - 1
    if not 1 <= wanted <= number:
        raise ValueError(
            f"`num_ranks` must be at most one more than the {number} draws of `infer`, got {num_ranks}. Let "
            "`infer` give more draws."
        )
    chosen = generator.permutation(number)[:wanted]
    value = np.concatenate([np.ravel(leaf) for leaf in values]).astype(np.float64)
    column = np.concatenate([np.reshape(leaf, (number, -1)) for leaf in columns], axis=1).astype(np.float64)[chosen]
    if not np.isfinite(column).all():
        bad = int(np.sum(~np.isfinite(column).all(axis=1)))
        raise ValueError(
            f"`infer` must give finite draws; {bad} of {wanted} hold NaN or infinity in simulation {simulation}. Its "
            "parameters would have no rank. Is the prior so wide that some data are extreme?"
        )
    below = np.sum(column < value, axis=0)
    ties = np.sum(column == value, axis=0)
    return below + generator.integers(0, ties + 1), wanted + 1


def _names(parameters: PyTree) -> tuple[str, ...]:
    one = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], np.float32), parameters)
    return tuple(name or "x" for name in Layout.of(one).coordinate_names())
