"""Writes the page of a result."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from ...core.archive import replacing
from ...core.arrays import as_data
from ...core.types import Batch
from .. import html
from . import charts, tables
from .animation import animate
from .record import Trace, by_name, evenly_spaced, facts, frames_note, size_of, traces

if TYPE_CHECKING:
    from ..result import Result

_TRACES = {  # by name: whether the axis is logarithmic, a reference level, the caption
    "velocity norm": (True, None, "Root mean square of the velocity, which falls as particles come to rest; of chains, "
                      "of their mean score in whitened coordinates, 0 up to noise."),
    "KSD": (True, None, "Kernel Stein discrepancy to the target in unconstrained coordinates, smaller is better."),
    "Stein ratio": (False, 1.0, "Near 1 when the spread is right, below it when the particles have collapsed."),
    "step size": (True, None, "Root mean square of a move over that of the velocity; of chains, the leapfrog step."),
}  # fmt: skip
_TONES = {"converged": "good", "finished": "good", "stopped": "warn", "diverged": "bad"}
_FILTERED = 12  # tables of more rows have a filter


def write_report(
    result: "Result",
    directory: str | os.PathLike[str],
    data: Batch,
    title: str | None,
    coordinates: Sequence[str] | None,
) -> Path:
    """See `Result.report`."""
    if not isinstance(directory, str | os.PathLike):
        raise ValueError(f"`directory` must be a directory, got {directory!r}.")
    data = as_data(data)
    if data is not None:
        result.known_target.check_data(data, None)
    settings, history, sites = result.described_settings(), result.history, result._sites()
    if history.particles is None:
        steps, frames = np.array([result.num_steps]), jax.tree.map(lambda leaf: leaf[None], by_name(result.particles))
    else:
        lines = evenly_spaced(len(history.step))
        steps, frames = history.step[lines], by_name(jax.tree.map(lambda leaf: leaf[lines], history.particles))
    content, left_out = animate(steps, frames, coordinates, moves=not result._chains)
    table, number, lost = tables.site_table(sites)
    title = str(settings.get("name", "particles")) if title is None else title
    versions = settings["versions"]
    subtitle = [size_of(result), f"steinkern {versions.get('steinkern')}", versions.get("date", "")]
    document = html.fill_template(
        __package__,
        "report.html",
        title=html.text(title),
        subtitle=html.text(" · ".join(filter(None, subtitle))),
        tone=_tone(result),
        status=html.text(result.status.value),
        message=html.prose(_sentence(str(result.message))),
        advice=_advice(result, lost),
        facts="".join(f"<dt>{html.text(label)}</dt><dd>{html.text(words)}</dd>" for label, words in facts(result)),
        settings=html.text(json.dumps(settings, indent=1, default=str)),
        traces="".join(_trace(name, trace) for name, trace in traces(result, data).items()),
        flow=html.as_script("flow", content),
        slider=html.slider(len(steps), len(steps) - 1),
        still="" if len(steps) > 1 else "still",
        flow_note=_paragraph(left_out, frames_note(result)),
        table=table,
        filter_hidden="" if number > _FILTERED else "hidden",
        table_note=_paragraph(
            f"The first {tables.MOST_ROWS} of {number:,} coordinates; `result.summary(max_rows=None)` prints all."
            if number > tables.MOST_ROWS
            else ""
        ),
        report_style=html.own_text(__package__, "report.css"),
        report_script=html.own_text(__package__, "report.js"),
    )
    path = Path(directory) / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(document.encode())
    return path


def _tone(result: "Result") -> str:
    """The tone (good, warn, bad) of the status; a good status with warnings has the tone "warn"."""
    tone = _TONES[result.status.value]
    return "warn" if tone == "good" and result.warnings else tone


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _paragraph(*sentences: str) -> str:
    words = " ".join(sentence for sentence in sentences if sentence)
    return f'<p class="quiet">{html.prose(words)}</p>' if words else ""


def _advice(result: "Result", lost: int) -> str:
    lines = [str(notice) for notice in result.warnings]
    if lost:
        lines.append(
            f"{lost:,} numbers of the particles are NaN or infinite; the table and the pictures leave them out."
        )
    return "<ul>" + "".join(f"<li>{html.prose(_sentence(line))}</li>" for line in lines) + "</ul>" if lines else ""


def _trace(name: str, trace: Trace) -> str:
    log, level, meaning = _TRACES[name]
    finite = trace.value[np.isfinite(trace.value)]
    log = bool(finite.size and finite.min() > 0 and (log or finite.max() > 20 * finite.min()))
    chart = charts.trace(name, trace.step, trace.value, log=log, level=level) if len(trace.step) else ""
    note = trace.note or ("" if chart else "Nothing was recorded.")
    body = chart or '<div class="absent" aria-hidden="true">–</div>'
    caption = html.prose(f"{meaning} {note}".strip())
    return f"<figure><h3>{html.text(_sentence(name))}</h3>{body}<figcaption>{caption}</figcaption></figure>"
