"""The target and the sampler of a result that was read from a file or sent by another process without them."""

from typing import Any, NoReturn

import equinox as eqx

from ..core.types import Batch, Key, Points, PyTree, Scalar, Vector
from ..samplers.sampler import AbstractSampler, Info
from ..targets.supports import AbstractSpace
from ..targets.target import AbstractTarget


class AbsentTarget(AbstractTarget):
    """Holds the place of a target that is not known; whatever would need it raises `ValueError`."""

    description: Any = eqx.field(static=True, default=None)
    """The target as JSON, for a page."""
    shared: PyTree = None
    power: Any = 1.0
    support: PyTree = None
    space: AbstractSpace | None = None

    @property
    def exchangeable(self) -> bool:
        return self.raise_absent()

    def log_base(self, vector: Vector) -> Scalar:
        return self.raise_absent()

    def log_example(self, vector: Vector, example: PyTree) -> Scalar:
        return self.raise_absent()

    def over_examples(self, function: Any, batch: Batch) -> Any:
        return self.raise_absent()

    def num_data_in(self, batch: Batch) -> Any:
        return self.raise_absent()

    def check_data(self, data: Batch, batch_size: int | None) -> None:
        self.raise_absent()

    def predictive(self, key: Key, particles: PyTree) -> Any:
        return self.raise_absent()

    @property
    def bound_space(self) -> AbstractSpace:
        return self.raise_absent()

    def raise_absent(self) -> NoReturn:
        """Raise the error of everything that needs the target."""
        raise ValueError(
            "this result has no target: it was read from a file, which holds no functions. Give it again, as in "
            "`steinkern.load(path, target=log_density)`. Without it there are `summary`, `predict`, `report`, "
            "`resample` and a `fit` from its particles."
        )


class AbsentSampler(AbstractSampler):
    """Holds the place of a sampler that is not known. `fit` takes a new one."""

    name: str = eqx.field(static=True)
    """The name of the sampler's class."""
    description: Any = eqx.field(static=True)
    """The sampler as JSON, for a page."""
    needs_gradient: bool = eqx.field(static=True)

    @property
    def differentiates(self) -> bool:
        return self.needs_gradient

    def init(self, target: AbstractTarget, points: Points, batch: Batch = None) -> Any:
        return self.raise_absent()

    def step(self, key: Key, state: Any, target: AbstractTarget, batch: Batch = None) -> tuple[Any, Info]:
        return self.raise_absent()

    def check(self, points: Points) -> None:
        self.raise_absent()

    def raise_absent(self) -> NoReturn:
        """Raise the error of everything that needs the sampler."""
        raise ValueError(
            f"`sampler` is only the name of one, {self.name}: the result was read from a file or sent by another "
            "process, without the functions of its step rule. Give `fit` a sampler, such as `steinkern.svgd()`."
        )
