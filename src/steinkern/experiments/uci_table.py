"""The tables of the UCI study, the paper's number beside ours, and what they say in words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .paper import TABLE_1, best_printed
from .results import Row
from .uci_study import PRECONDITIONED, TITLES

CAPTION = (
    "Mean ± standard error over the standard splits (20; 5 for protein), the paper's number in brackets where it "
    "prints one. Bayesian networks with {layers} hidden layers of 50 ReLU units, with biases; 10 particles, the noise "
    "variance a coordinate of each; Adam with a cosine schedule (plain steps for the Langevin chains). The matrix "
    "variants use KFAC, one kernel a layer; the mixture's weights go by Euclidean distance over the median bandwidth. "
    "Settings were chosen on a tenth of the training rows.{note}"
)
_METRICS = {"rmse": ("Test RMSE", 1), "log_likelihood": ("Test log-likelihood", -1)}
_DIGITS = {"naval": 5, "kin8nm": 4}


class Finished(NamedTuple):
    """A finished row: the checkpoints in steps, and both scores (trials, checkpoints)."""

    checkpoints: list[int]
    rmse: np.ndarray
    log_likelihood: np.ndarray

    def last(self, metric: str) -> np.ndarray:
        """The score of every trial at the end of its run."""
        return getattr(self, metric)[:, -1]

    def summary(self) -> str:
        """Both scores in a line."""
        return f"RMSE {self.last('rmse').mean():.4g}, log-likelihood {self.last('log_likelihood').mean():.4g}"


Rows = Mapping[tuple[str, str], Finished]


def table(finished: Rows, names: Sequence[str], methods: Sequence[str], metric: str) -> str:
    """One metric as Markdown: a dataset a row, a method a column; the best of our methods in bold."""
    title, sign = _METRICS[metric]
    head = f"| {title} | " + " | ".join(TITLES[method] for method in methods) + " |"
    lines = [head, "|---" * (len(methods) + 1) + "|"]
    for name in names:
        own = _rows_of(finished, name, metric)
        if not own:
            lines.append(f"| {name} |" + " not run: data absent |" * len(methods))
            continue
        best = _printed(min(own.values(), key=lambda row: sign * row.mean))  # level as printed: all of them are bold
        lines.append(f"| {name} | " + " | ".join(_cell(own[method], best) for method in methods) + " |")
    return "\n".join(lines)


def _rows_of(finished: Rows, name: str, metric: str) -> dict[str, Row]:
    """A dataset's rows by method."""
    return {m: Row.over(done.last(metric), name, m, metric) for (case, m), done in finished.items() if case == name}


def _printed(row: Row) -> str:
    return f"{row.mean:.{_digits(row)}f}"


def _digits(row: Row) -> int:
    return _DIGITS.get(row.case, 3) if row.metric == "rmse" else 3


def _cell(row: Row, best: str) -> str:
    text = f"{_printed(row)} ± {row.stderr:.{_digits(row)}f}"
    text = f"**{text}**" if _printed(row) == best else text
    printed = TABLE_1[row.metric].get(row.case, {}).get(row.method)
    return text if printed is None else f"{text} ({printed.mean:.3f})"


def verdicts(finished: Rows) -> list[str]:
    """Where the mixture stands beside the paper's best of a row, and the matrix variants beside our own best."""
    lines = []
    for metric, (title, sign) in _METRICS.items():
        beside_paper: dict[str, list[str]] = {"at or better": [], "within one standard error": [], "worse": []}
        beside_ours: dict[bool, list[str]] = {True: [], False: []}
        for name in dict.fromkeys(case for case, _ in finished):
            own = _rows_of(finished, name, metric)
            paper = best_printed(metric, name)
            if "mixture" in own and paper is not None:
                gap = sign * (own["mixture"].mean - _floor(paper, name, metric))
                near = "within one standard error" if gap <= own["mixture"].stderr else "worse"
                beside_paper["at or better" if gap <= 0 else near].append(name)
            matrix = [own[method] for method in PRECONDITIONED if method in own]
            if matrix:
                best = min(own.values(), key=lambda row: sign * row.mean)
                closest = min(sign * (row.mean - best.mean) for row in matrix)
                beside_ours[closest <= best.stderr].append(name)
        places = "; ".join(f"{place} on {_listed(names)}" for place, names in beside_paper.items())
        lines.append(f"{title}, mixture beside the paper's best of the row: {places}.")
        lines.append(
            f"{title}, a matrix variant is best or within one standard error of the best of our methods on "
            f"{_listed(beside_ours[True])}; not so on {_listed(beside_ours[False])}."
        )
    return lines


def _floor(paper: float, name: str, metric: str) -> float:
    # Printed as 0.000: anything below 0.0005 would be.
    return 0.0005 if (name, metric) == ("naval", "rmse") else paper


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"
