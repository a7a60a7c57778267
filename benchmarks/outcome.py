"""What the benchmarks read of a result beside its particles, in one place."""

import dataclasses
from typing import Any


def warnings_of(result: Any) -> list[str]:
    """The texts of its warnings."""
    return [str(notice) for notice in result.warnings]


def cost_of(result: Any) -> dict[str, float]:
    """Evaluations of a run of `sample`, or of `fit` without a sampler, which counts epochs too where there are rows."""
    cost = dataclasses.asdict(result.diagnostics.cost)
    return cost if cost["epochs"] else {name: number for name, number in cost.items() if name != "epochs"}


def passed(result: Any) -> bool | None:
    """Whether its particles pass the checks at the end; `None` where nothing could be checked."""
    return not result.warnings if len(result.diagnostics.shift) else None


def diverged(result: Any) -> bool:
    return result.status.value == "diverged"


def converged(result: Any) -> bool:
    return result.status.value == "converged"
