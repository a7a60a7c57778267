"""Numbers printed in the paper (Wang et al., NeurIPS 2019), to stand beside ours."""

from typing import NamedTuple


class Printed(NamedTuple):
    """A printed mean and its standard error."""

    mean: float
    stderr: float


_METHODS = ("psgld", "vanilla", "average", "mixture")

_RMSE = {
    "boston": ((2.699, 0.155), (2.785, 0.169), (2.898, 0.184), (2.717, 0.166)),
    "concrete": ((5.053, 0.124), (5.027, 0.116), (4.869, 0.124), (4.721, 0.111)),
    "energy": ((0.985, 0.024), (0.889, 0.024), (0.795, 0.025), (0.868, 0.025)),
    "kin8nm": ((0.091, 0.001), (0.093, 0.001), (0.092, 0.001), (0.090, 0.001)),
    "naval": ((0.002, 0.000), (0.004, 0.000), (0.001, 0.000), (0.000, 0.000)),
    "power": ((4.042, 0.034), (4.088, 0.033), (4.056, 0.033), (4.029, 0.033)),
    "wine_red": ((0.641, 0.009), (0.645, 0.009), (0.637, 0.008), (0.637, 0.009)),
    "protein": ((4.300, 0.018), (4.186, 0.017), (3.997, 0.018), (3.852, 0.014)),
    "year": ((8.630, 0.007), (8.686, 0.010), (8.637, 0.005), (8.594, 0.009)),
}

_LOG_LIKELIHOOD = {
    "boston": ((-2.847, 0.182), (-2.706, 0.158), (-2.669, 0.141), (-2.861, 0.207)),
    "concrete": ((-3.206, 0.056), (-3.064, 0.034), (-3.150, 0.054), (-3.207, 0.071)),
    "energy": ((-1.395, 0.029), (-1.315, 0.020), (-1.135, 0.026), (-1.249, 0.036)),
    "kin8nm": ((0.973, 0.010), (0.964, 0.012), (0.956, 0.011), (0.975, 0.011)),
    "naval": ((4.535, 0.093), (4.312, 0.087), (5.383, 0.081), (5.639, 0.048)),
    "power": ((-2.821, 0.009), (-2.832, 0.009), (-2.824, 0.009), (-2.817, 0.009)),
    "wine_red": ((-0.984, 0.016), (-0.997, 0.019), (-0.980, 0.016), (-0.988, 0.018)),
    "protein": ((-2.874, 0.004), (-2.846, 0.003), (-2.796, 0.004), (-2.755, 0.003)),
    "year": ((-3.568, 0.002), (-3.577, 0.002), (-3.569, 0.001), (-3.561, 0.002)),
}

TABLE_1 = {
    metric: {
        case: {method: Printed(*pair) for method, pair in zip(_METHODS, pairs, strict=True)}
        for case, pairs in table.items()
    }
    for metric, table in (("rmse", _RMSE), ("log_likelihood", _LOG_LIKELIHOOD))
}
"""Table 1: metric, dataset, method. Naval's RMSE is printed with three digits."""

TABLE_2 = {
    "mr": {"sgld": 20.52, "psgld": 19.75, "vanilla": 19.73, "average": 19.22, "mixture": 19.09},
    "cr": {"sgld": 18.65, "psgld": 17.50, "vanilla": 18.07, "average": 17.29, "mixture": 17.13},
    "subj": {"sgld": 7.66, "psgld": 6.99, "vanilla": 6.67, "average": 6.76, "mixture": 6.59},
    "mpqa": {"sgld": 11.24, "psgld": 10.80, "vanilla": 10.58, "average": 10.79, "mixture": 10.71},
}
"""Table 2: errors in percent by dataset and method."""


def best_printed(metric: str, case: str) -> float | None:
    """The best number of a row of Table 1, over all methods; `None` where the paper has no such row."""
    row = TABLE_1[metric].get(case)
    if row is None:
        return None
    values = [printed.mean for printed in row.values()]
    return min(values) if metric == "rmse" else max(values)
