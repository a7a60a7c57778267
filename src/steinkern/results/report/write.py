"""Writes the page of a run from its record."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core.files import prepare_directory, write_text
from ...core.notices import quantity
from .. import html
from . import charts, tables
from .animation import animate
from .facts import facts
from .record import Frames, Record

_TRACES = {  # in the order of the page: whether the axis is logarithmic, a reference level, the caption
    "velocity norm": (True, None, "Root mean square of the velocity. It falls as the particles come to rest."),
    "KSD": (True, None, "Kernel Stein discrepancy to the target, smaller is better."),
    "Stein ratio": (False, 1.0, "Near 1 when the spread is right, below it when the particles have collapsed."),
    "step size": (True, None, "Root mean square of a move over that of the velocity."),
}
_CHAIN_TRACES = {  # the same for the chains of `sample`
    "mean score": (True, None, "Root mean square of the chains' mean score in whitened coordinates: 0 up to noise."),
    "KSD": (True, None, "Of the chains, and at the end of the particles, in unconstrained coordinates as they are; "
            "under “Quality” it is in whitened ones, with another scale."),
    "Stein ratio": (False, 1.0, "Of the chains: near 1 when their spread is right, with noise."),
    "step size": (True, None, "Of the leapfrog scheme, in whitened coordinates: adapted at first, then fixed, and "
                  "halved where chains are slow to settle."),
}  # fmt: skip
_TONES = {"converged": "good", "finished": "good", "stopped": "warn", "checkpoint": "warn", "diverged": "bad"}
_FILTERED = 12  # tables of more rows have a filter


def write_report(
    record: Record,
    directory: str | os.PathLike[str],
    *,
    coordinates: Sequence[str] | None = None,
    name: str = "index.html",
) -> Path:
    """Write a self-contained page into a directory, created where it does not exist, and return its path.

    Args:
        record: the content of the page.
        directory: of the page.
        coordinates: the coordinates to draw, or names of sites for all their coordinates.
        name: the file name of the page.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ValueError(f"`directory` must be a directory, got {directory!r}.")
    frames = record.frames or Frames(
        np.array([record.num_steps]), {name: values[None] for name, values in record.drawn.items()}
    )
    content, left_out = animate(frames, coordinates, moves=not record.chains)
    prepare_directory(Path(directory), "`directory`")
    table, number, lost = tables.site_table(record.sites)
    document = html.fill_template(
        __package__,
        "report.html",
        title=html.text(record.title),
        subtitle=html.text(" · ".join(_subtitle(record))),
        tone=_tone(record),
        status=html.text(record.status),
        message=html.prose(_sentence(record.message)),
        advice=_advice(record, lost),
        facts="".join(f"<dt>{html.text(label)}</dt><dd>{html.text(words)}</dd>" for label, words in facts(record)),
        settings=html.text(json.dumps(dict(record.settings), indent=1, default=str)),
        traces="".join(_trace(record, name) for name in _traces_of(record)),
        flow=html.as_script("flow", content),
        slider=html.slider(len(frames.step), len(frames.step) - 1),
        still="" if len(frames.step) > 1 else "still",
        flow_note=_paragraph(
            record.coordinates_note,
            left_out,
            "" if record.frames else "Only the last particles are known.",
            record.flow_note,
        ),
        table=table,
        filter_hidden="" if number > _FILTERED else "hidden",
        table_note=_paragraph(
            f"The first {tables.MOST_ROWS} of {number:,} coordinates; `result.summary(max_rows=None)` prints all."
            if number > tables.MOST_ROWS
            else ""
        ),
        checks=_checks(record),
        report_style=html.own_text(__package__, "report.css"),
        report_script=html.own_text(__package__, "report.js"),
    )
    path = Path(directory) / name
    write_text(path, document)
    return path


def _tone(record: Record) -> str:
    """The tone (good, warn, bad) of the status; a good status with warnings has the tone "warn"."""
    tone = _TONES.get(record.status, "warn")
    return "warn" if tone == "good" and record.advice else tone


def _subtitle(record: Record) -> list[str]:
    """The numbers of particles and steps, and where known the version and the date."""
    version = record.versions.get("steinkern")
    parts = [
        f"{quantity(record.num_particles, 'particle')}, {quantity(record.num_steps, 'step')}",
        f"steinkern {version}" if version else "",
        record.versions.get("date", ""),
    ]
    return [part for part in parts if part]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _paragraph(*sentences: str) -> str:
    words = " ".join(sentence for sentence in sentences if sentence)
    return f'<p class="quiet">{html.prose(words)}</p>' if words else ""


def _advice(record: Record, lost: int) -> str:
    said = list(record.advice)
    if lost:
        said.append(
            f"{lost:,} numbers of the particles are NaN or infinite; the table and the pictures leave them out."
        )
    return "<ul>" + "".join(f"<li>{html.prose(_sentence(line))}</li>" for line in said) + "</ul>" if said else ""


def _traces_of(record: Record) -> dict[str, tuple[bool, float | None, str]]:
    return _CHAIN_TRACES if record.chains else _TRACES


def _trace(record: Record, name: str) -> str:
    log, level, meaning = _traces_of(record)[name]
    trace = record.traces[name]
    finite = trace.value[np.isfinite(trace.value)]
    log = bool(finite.size and finite.min() > 0 and (log or finite.max() > 20 * finite.min()))
    chart = charts.trace(name, trace.step, trace.value, log=log, level=level) if len(trace.step) else ""
    note = trace.note or ("" if chart else "Nothing was recorded.")
    body = chart or '<div class="absent" aria-hidden="true">–</div>'
    said = " ".join([meaning, note]).strip()
    return f"<figure><h3>{html.text(_sentence(name))}</h3>{body}<figcaption>{html.prose(said)}</figcaption></figure>"


def _checks(record: Record) -> str:
    if not record.predictive:
        return _paragraph(
            "None were given. With a NumPyro or PyMC model `result.report(directory, key=key)` draws from its "
            "predictive distribution; elsewhere give `predictive={name: draws}` and `observed={name: values}`."
        )
    return "".join(tables.check(name, draws, record.observed.get(name)) for name, draws in record.predictive.items())
