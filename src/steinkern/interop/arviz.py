"""Results as ArviZ data: `InferenceData` of ArviZ 0.x, an xarray `DataTree` from 1.0 on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Group = Mapping[str, Any]


def from_groups(
    posterior: Group, sample_stats: Group, observed_data: Group, posterior_predictive: Group, attributes: Group
) -> Any:
    """ArviZ data with the groups that are not empty, and `attributes` on the posterior.

    Draws have a leading particle axis and become one chain.
    """
    groups = {
        "posterior": _one_chain(posterior),
        "sample_stats": _one_chain(sample_stats),
        "posterior_predictive": _one_chain(posterior_predictive),
        "observed_data": {name: np.asarray(value) for name, value in observed_data.items()},
    }
    data = _from_dict({name: group for name, group in groups.items() if group})
    data["posterior"].attrs.update(attributes)
    return data


def _one_chain(group: Group) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[None] for name, value in group.items()}


def _from_dict(groups: dict[str, Any]) -> Any:
    try:
        import arviz

        old = arviz.__version__.startswith("0.")
    except ModuleNotFoundError:
        old = False
    if old:
        return arviz.from_dict(**groups)
    try:
        from arviz_base import from_dict
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`to_arviz` needs ArviZ, which is not installed: pip install 'steinkern[arviz]'"
        ) from error
    return from_dict(groups)
