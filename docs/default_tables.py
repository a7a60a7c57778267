"""Puts the numbers of `benchmarks/results` into `docs/default.md`, between its marks (`make results-pages`)."""

import math
import re
from collections.abc import Callable
from pathlib import Path

from steinkern.experiments.tables import Row, markdown, read_results

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "default.md"
_MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", flags=re.S)
NAMES = {
    "ours": "**`sample`**",
    "stein": "`fit` without a sampler",
    "nuts": "NUTS, as many gradients",
    "laplace": "Laplace",
    "pathfinder": "Pathfinder",
    "svgd": "SVGD, 1000 steps from N(0, I)",
}
SIZES = {"stein-20": 20, "stein-50": 50, "stein": 100, "stein-500": 500}
RIVALS = {"sgld": "SGLD", "psgld": "pSGLD", "svi": "Adam, mean field", "svgd": "SVGD"}
Numbers = dict[tuple[str, str, str], float]


def numbers_of(name: str) -> Numbers:
    """The means of a file of results by case, method and metric."""
    rows: list[Row] = read_results(ROOT / "benchmarks" / "results" / f"{name}.json")[2]
    return {(row.case, row.method, row.metric): row.mean for row in rows}


def _counts(found: Numbers, method: str, half: str = "all") -> list[str]:
    number = {metric: found[half, method, metric] for case, name, metric in found if (case, name) == (half, method)}
    silent = f"{number['silent_failures']:.0f}"
    good = f"{number['good_targets']:.0f} of {number['targets']:.0f}"
    medians = [f"{number[f'median_{metric}']:,.0f}" for metric in ("evaluations", "sequential")]
    return [good, f"{number['excellent_targets']:.0f}", silent, *medians]


def methods_table() -> str:
    found = numbers_of("posteriors")
    heads = ["good", "excellent", "silent failures", "evaluations (median)", "sequential (median)"]
    return markdown("", heads, {name: _counts(found, method) for method, name in NAMES.items()})


def sizes_table() -> str:
    found = numbers_of("posteriors")
    heads = ["good", "excellent", "wrong without a warning", "evaluations, median", "one after the other, median"]
    table = markdown("particles", heads, {str(size): _counts(found, method) for method, size in SIZES.items()})
    lines = []
    for method, size in SIZES.items():
        named = {"good": [], "excellent": []}
        for case in (case for case, name, metric in found if name == method and metric == "max_mean_error"):
            good, excellent = (found[case, method, metric] == 1 for metric in ("good", "excellent"))
            if not good:
                named["good"].append(case)
            elif not excellent:
                named["excellent"].append(case)
        lines.append(
            f"- {size} particles: not good on {_listed(named['good'])}; good and not excellent on "
            f"{_listed(named['excellent'])}."
        )
    return table + "\n\n" + "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"


def times_table() -> str:
    found = numbers_of("posteriors-times")
    cases = list(dict.fromkeys(case for case, _, _ in found))
    methods = {"ours": "`sample`", "stein": "`fit` without a sampler", "nuts": "NUTS", "svgd": "SVGD"}
    lines = {
        case: [
            " / ".join(_seconds(found.get((case, method, f"{call}_seconds"))) for call in ("first", "second"))
            for method in methods
        ]
        for case in cases
    }
    return markdown("first / second call, seconds", list(methods.values()), lines)


def _seconds(value: float | None) -> str:
    return "not measured" if value is None or math.isnan(value) else f"{value:.1f}"


def minibatch_table() -> str:
    found = numbers_of("minibatch")
    cases = list(dict.fromkeys(case for case, _, _ in found))
    lines = {}
    for case in cases:
        ours = {metric: found.get((case, "stein", metric), math.nan) for metric in ("max_mean_error", "max_sd_error")}
        cells = [
            f"{ours['max_mean_error']:.3f} sd, {ours['max_sd_error']:.1%}",
            f"**{found[case, 'stein', 'epochs']:.1f}**",
        ]
        lines[case.replace(",batch=", ", ")] = cells + [_rival(found, case, method) for method in RIVALS]
    heads = ["errors of `fit` without a sampler", "its epochs", *RIVALS.values()]
    return markdown("posterior and batch", heads, lines)


def _rival(found: Numbers, case: str, method: str) -> str:
    """Epochs to reach the limits and, in brackets, the errors at the end."""
    if (case, method, "epochs") not in found:
        return "not run"
    reached = found[case, method, "epochs_to_reach"]
    errors = _short(found[case, method, "max_mean_error"], " sd"), _short(found[case, method, "max_sd_error"], "")
    return f"{'never' if math.isnan(reached) else f'{reached:.1f}'} ({errors[0]}, {errors[1]})"


def _short(value: float, unit: str) -> str:
    if math.isnan(value):
        return "diverged"
    if unit:
        return f"{value:.2f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return f"{value:.0%}" if value < 10 else f"{1 + value:.0f} ×"


def bananas_table() -> str:
    found = numbers_of("bananas")
    cases = list(dict.fromkeys(case for case, _, _ in found))
    lines = {}
    for case in cases:
        for method, name in {"stein": "100 particles", "stein-20": "20 particles", "ours": "`sample`"}.items():
            if (case, method, "good") in found:
                number = {metric: found[case, method, metric] for c, m, metric in found if (c, m) == (case, method)}
                lines[f"{case}, {name}"] = [
                    f"{number['max_mean_error']:.2f} sd",
                    f"{number['min_sd_ratio']:.2f} to {number['max_sd_ratio']:.2f}",
                    *(f"{number[metric]:.0f}" for metric in ("good", "warned", "silent_failure")),
                ]
    heads = ["largest error of a mean", "ratios of sds", "good", "warned", "wrong without a warning"]
    return markdown("target", heads, lines)


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "sizes": sizes_table,
    "times": times_table,
    "minibatch": minibatch_table,
    "bananas": bananas_table,
}


def filled_default() -> str:
    """The text of the page with its tables between the marks."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(filled_default())
