"""The tables of the sentence study, the paper's number beside ours, and what they say in words."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .paper import TABLE_2
from .results import TITLES, Row
from .sentence_study import READOUTS

_CAPTION = (
    "Mean ± standard error over {folds} folds of ten; the paper's error in brackets, the best of ours in bold. A "
    "bidirectional GRU with 50 units each way, dropout 0.5, over fine-tuned word vectors: {vectors}. The output "
    "weights are ten particles, moved by Adam (the Langevin chains by plain steps) for at most 12 epochs. The matrix "
    "variants use the exact softmax Fisher information in a running average (0.95); the mixture's weights leave the "
    "determinants out and widen with the median bandwidth, since Eq. (17) itself is one-hot here. The samplers' "
    "predictive probabilities are a running average over the checks at which early stopping looks, the point estimate "
    "is one network at its best check. {choices}"
)
_CHOICES = (
    "Step sizes, dampings and stopping were chosen on a tenth of every fold's training rows; dropout, the network's "
    "step sizes and the average with the point estimate on such rows of three folds, test rows of other folds."
)
METRICS = {
    "error": ("Test error, %", 1, 2),
    "log_likelihood": ("Test log-likelihood", -1, 4),
    "ece": ("Expected calibration error, %", 1, 2),
}
"""Title, sign (1 where smaller is better), digits."""
_PERCENT = ("error", "ece")


def caption(folds: int, vectors: Sequence[str] | None) -> str:
    """What the numbers are; `vectors` names the tables of word vectors, `None` for a quick look's generated corpus."""
    if vectors is None:
        words, choices = "drawn for a generated corpus", "A quick look: settings are fixed, and epochs few."
    else:
        words = f"{', '.join(vectors)} side by side, where the paper's code has all of GoogleNews (word2vec, 300-d)"
        choices = _CHOICES
    return _CAPTION.format(folds=folds, vectors=words, choices=choices)


class Finished(NamedTuple):
    """A finished row: by readout and metric, a value for every fold; errors in percent."""

    values: dict[str, dict[str, np.ndarray]]

    @classmethod
    def of(cls, done: Mapping[str, Any]) -> "Finished":
        """From a journal's piece."""
        return cls(
            {
                readout: {m: np.array(done[readout][m], float) * (100 if m in _PERCENT else 1) for m in METRICS}
                for readout in READOUTS
            }
        )

    def main(self, method: str) -> dict[str, np.ndarray]:
        """The values of the method's own readout."""
        return self.values["now" if method == "point" else "averaged"]

    def summary(self, method: str) -> str:
        """All metrics in a line."""
        own = self.main(method)
        return ", ".join(f"{title} {own[metric].mean():.{digits}f}" for metric, (title, _, digits) in METRICS.items())


Rows = Mapping[tuple[str, str], Finished]


def rows_of(finished: Rows) -> list[Row]:
    """Every number: the method's own readout under the metric's name, both as metric@readout."""
    rows = []
    for (name, method), done in finished.items():
        for metric in METRICS:
            printed = TABLE_2.get(name, {}).get(method) if metric == "error" else None
            rows.append(Row.over(done.main(method)[metric], name, method, metric, printed))
            for readout in READOUTS:
                rows.append(Row.over(done.values[readout][metric], name, method, f"{metric}@{readout}"))
    return rows


def tables(finished: Rows, names: Sequence[str], methods: Sequence[str]) -> dict[str, str]:
    """A Markdown table for each metric: a method a row, a dataset a column, as Table 2; the best of ours in bold."""
    labelled: list[tuple[str, str, str | None]] = [(TITLES[method], method, None) for method in methods]
    if "point" in methods:
        labelled.append((f"{TITLES['point']}, averaged over checks", "point", "averaged"))
    found = {}
    for metric, (title, sign, digits) in METRICS.items():
        lines = [f"| {title} | " + " | ".join(map(str.upper, names)) + " |", "|---" * (len(names) + 1) + "|"]
        rows = {
            name: [row_of(finished, name, method, metric, readout) for _, method, readout in labelled] for name in names
        }
        # As printed: where several are level all of them are bold.
        best = {name: f"{sign * min(sign * row.mean for row in own):.{digits}f}" for name, own in rows.items()}
        for place, (label, _, readout) in enumerate(labelled):
            cells = [
                _cell(rows[name][place], digits, best[name] == f"{rows[name][place].mean:.{digits}f}", readout)
                for name in names
            ]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        found[metric] = "\n".join(lines)
    return found


def _cell(row: Row, digits: int, best: bool, readout: str | None) -> str:
    text = f"{row.mean:.{digits}f}" + (f" ± {row.stderr:.{digits}f}" if row.trials > 1 else "")
    text = f"**{text}**" if best else text
    printed = TABLE_2.get(row.case, {}).get(row.method) if row.metric == "error" and readout is None else None
    return text if printed is None else f"{text} ({printed:.2f})"


def row_of(finished: Rows, name: str, method: str, metric: str, readout: str | None = None) -> Row:
    """One number: of the method's own readout, or of another."""
    done = finished[name, method]
    return Row.over((done.main(method) if readout is None else done.values[readout])[metric], name, method, metric)


def verdicts(finished: Rows) -> list[str]:
    """Where the mixture stands beside the point estimate, vanilla SVGD, our best, and the paper."""
    lines = []
    names = [name for name, method in finished if method == "mixture"]
    averaged = f"{TITLES['point']}, averaged over checks"
    for other, readout, label in (
        ("point", None, TITLES["point"]), ("point", "averaged", averaged), ("vanilla", None, TITLES["vanilla"])
    ):  # fmt: skip
        compared = [name for name in names if (name, other) in finished]
        for metric, (title, _, _) in METRICS.items():
            parts = [f"{name} {_difference(finished, name, other, readout, metric)}" for name in compared]
            if parts:
                lines.append(f"{title}, mixture − {label}, paired over folds: {', '.join(parts)}.")
    for metric, (title, _, _) in METRICS.items():
        near = [name for name in names if _is_near_best(finished, name, metric)]
        listed = f"{len(near)} of {len(names)} ({', '.join(near)})" if near else "none"
        if names:
            near_best = "best, or within one standard error (paired over folds) of our best method"
            lines.append(f"{title}: the mixture is {near_best}, on {listed}.")
    gaps = [
        f"{name} {row_of(finished, name, 'mixture', 'error').mean - TABLE_2[name]['mixture']:+.2f}"
        for name in names
        if name in TABLE_2
    ]
    if gaps:
        lines.append(f"Test error, mixture − the paper's mixture, with other word vectors: {', '.join(gaps)}.")
    return lines


def _is_near_best(finished: Rows, name: str, metric: str) -> bool:
    """Whether the mixture is behind our best method by at most one standard error of the paired difference."""
    sign = METRICS[metric][1]
    own = {method: sign * done.main(method)[metric] for (case, method), done in finished.items() if case == name}
    best = min(own.values(), key=np.mean)
    gap = Row.over(own["mixture"] - best, name, "mixture", metric)
    return bool(gap.mean <= 0 or gap.mean <= gap.stderr)


def _difference(finished: Rows, name: str, other: str, readout: str | None, metric: str) -> str:
    """The mixture's score minus another's, and whether that is better, worse, or level: within one standard error."""
    _, sign, digits = METRICS[metric]
    own = finished[name, other]
    theirs = (own.main(other) if readout is None else own.values[readout])[metric]
    row = Row.over(finished[name, "mixture"].main("mixture")[metric] - theirs, name, "mixture", metric)
    near = row.mean == 0 or abs(row.mean) <= row.stderr
    verdict = "level" if near else ("better" if sign * row.mean < 0 else "worse")
    error = f" ± {row.stderr:.{digits}f}" if row.trials > 1 else ""
    return f"{row.mean:+.{digits}f}{error} ({verdict})"
