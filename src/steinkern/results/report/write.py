"""Writes the page of a result: its end, its particles by name, its traces and its settings."""

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Float

from ...core.archive import replacing
from ...core.arrays import as_data
from ...core.messages import quantity
from ...core.programs import compiled
from ...core.types import Batch, PyTree
from ...kernels.diagnostics import ksd2
from ...kernels.scalar import IMQ
from ...targets.target import BoundTarget
from .. import html
from ..summary import HEAD, by_name, moments, size_of
from . import charts
from .animation import animate, evenly_spaced_to_last

if TYPE_CHECKING:
    from ..result import Result

MAX_ROWS = 400
"""The most rows of the table of sites."""
_MAX_FRAMES = 60
"""The most iterations at which the particles are drawn."""
_MAX_MEASURED = 20  # the most iterations at which the discrepancy is computed
_MAX_PAIRED = 500  # the most particles from which the discrepancy is computed
_OPTIONS = (
    "batch_size", "record_every", "record_particles", "tolerance", "max_move", "tempering", "steps before",
    "max_gradients",
)  # fmt: skip
_TRACES = {  # by name: whether the axis is logarithmic, a reference level, the caption
    "velocity norm": (True, None, "Root mean square of the velocity, which falls as particles come to rest; of chains, "
                      "of their mean score in whitened coordinates, 0 up to noise."),
    "Stein ratio": (False, 1.0, "Near 1 when the spread is right, below it when the particles have collapsed."),
    "step size": (True, None, "Root mean square of a move over that of the velocity; of chains, the leapfrog step."),
    "KSD": (True, None, "Kernel Stein discrepancy to the target in unconstrained coordinates, smaller is better."),
}  # fmt: skip
_TONES = {"converged": "good", "finished": "good", "stopped": "warn", "diverged": "bad"}


def write_report(
    result: "Result",
    directory: str | os.PathLike[str],
    data: Batch,
    title: str | None,
    coordinates: Sequence[str] | None,
) -> Path:
    """See `Result.report`."""
    data = as_data(data)
    if data is not None:
        result.known_target.check_data(data, None)
    settings, history = result.described_settings(), result.history
    sites = {name: np.asarray(values) for name, values in result._sites().items()}
    if history.particles is None:
        steps = np.array([result.num_steps])
        frames = {name: np.asarray(values)[None] for name, values in by_name(result.particles).items()}
    else:
        records = evenly_spaced_to_last(len(history.step), _MAX_FRAMES)
        steps, frames = history.step[records], by_name(jax.tree.map(lambda leaf: leaf[records], history.particles))
    content, left_out = animate(steps, frames, coordinates, moves=not result._chains)
    rows, more = moments(sites, MAX_ROWS)
    title = str(settings.get("name", "particles")) if title is None else title
    versions = settings["versions"]
    subtitle = [size_of(result), f"steinkern {versions.get('steinkern')}", versions.get("date", "")]
    tone = _TONES[result.status.value]
    traces = {
        "velocity norm": (history.step, history.velocity_norm, ""),
        "Stein ratio": (history.step, history.stein_ratio, ""),
        "step size": (history.step, history.step_size, ""),
        "KSD": _discrepancy(result, data),
    }
    first_rows = f"The first {MAX_ROWS} of {MAX_ROWS + more:,} coordinates; `result.summary(max_rows=None)` prints all."
    document = Template(_template("report.html")).substitute(
        title=html.text(title),
        subtitle=html.text(" · ".join(filter(None, subtitle))),
        tone="warn" if tone == "good" and result.warnings else tone,
        status=html.text(result.status.value),
        message=html.prose(_sentence(str(result.message))),
        advice=_advice(result, sites),
        facts="".join(f"<dt>{html.text(label)}</dt><dd>{html.text(words)}</dd>" for label, words in facts(result)),
        settings=html.text(json.dumps(settings, indent=1, default=str)),
        traces="".join(_figure(name, *trace) for name, trace in traces.items()),
        flow=html.as_script("flow", content),
        last=len(steps) - 1,
        still="" if len(steps) > 1 else "still",
        flow_note=_paragraph(left_out, _frames_note(result)),
        table=html.table(("site", *HEAD), [(name, *map(charts.number, row)) for name, row in rows]),
        filter_hidden="" if len(rows) > 12 else "hidden",
        table_note=_paragraph(first_rows if more else ""),
        **{name.replace(".", "_"): _template(name) for name in ("page.css", "report.css", "player.js", "report.js")},
    )
    path = Path(directory) / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(document.encode())
    return path


def _template(name: str) -> str:
    return resources.files(__package__).joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _paragraph(*sentences: str) -> str:
    words = " ".join(sentence for sentence in sentences if sentence)
    return f'<p class="quiet">{html.prose(words)}</p>' if words else ""


def _advice(result: "Result", sites: dict[str, np.ndarray]) -> str:
    lines = [str(notice) for notice in result.warnings]
    lost = sum(int(np.sum(~np.isfinite(np.asarray(values, float)))) for values in sites.values())
    if lost:
        lines.append(
            f"{lost:,} numbers of the particles are NaN or infinite; the table and the pictures leave them out."
        )
    return "<ul>" + "".join(f"<li>{html.prose(_sentence(line))}</li>" for line in lines) + "</ul>" if lines else ""


def facts(result: "Result") -> list[tuple[str, str]]:
    """The labels and texts of the page's list of settings."""
    settings = result.described_settings()
    shared = [np.size(leaf) for leaf in jax.tree.leaves(result.shared)]
    labeled = {
        "Command": settings.get("command"),
        "Target": settings.get("target"),
        "Parameters": ", ".join(f"{name} {list(v.shape[1:])}" for name, v in by_name(result.particles).items()),
        "Shared": f"{sum(shared):,} numbers in {quantity(len(shared), 'array')}, point estimates" if shared else "",
        "Data": ", ".join(settings.get("data shapes") or ()),
        "Method": settings.get("method") or settings.get("sampler"),
        "Particles and steps": size_of(result),
        "Check": " ".join(result._ending()[1:]),
        "Key": "" if "command" in settings else " ".join(map(str, settings.get("key") or ())),
        "Options": ", ".join(f"{name} {settings[name]}" for name in _OPTIONS if settings.get(name)),
        "Versions": ", ".join(f"{name} {number}" for name, number in settings["versions"].items()),
    }
    return [(label, text) for label, text in labeled.items() if text]


def _frames_note(result: "Result") -> str:
    """What the recorded particles are, or why there are none."""
    recorded = result.history.particles is not None
    if result._chains:
        known = "Before the last step these are the chains" if recorded else "The chains are too many to be kept"
        return f"{known}; the particles are draws that represent all of theirs."
    hint = "Give `record_particles=True` to `fit` (`record_every=k` for every k-th step) to have them kept."
    return "" if recorded else hint


def _figure(name: str, step: np.ndarray, value: np.ndarray, note: str) -> str:
    """A trace with its caption."""
    log, level, meaning = _TRACES[name]
    finite = value[np.isfinite(value)]
    log = bool(finite.size and finite.min() > 0 and (log or finite.max() > 20 * finite.min()))
    chart = charts.trace(name, step, value, log=log, level=level) if len(step) else ""
    body = chart or '<div class="absent" aria-hidden="true">–</div>'
    caption = html.prose(f"{meaning} {note or ('' if chart else 'Nothing was recorded.')}".strip())
    return f"<figure><h3>{html.text(_sentence(name))}</h3>{body}<figcaption>{caption}</figcaption></figure>"


def _discrepancy(result: "Result", data: Batch) -> tuple[np.ndarray, np.ndarray, str]:
    """Steps, the kernel Stein discrepancy in unconstrained coordinates there, and a note, or why there is none.

    The kernel is the IMQ with the bandwidth of the last particles at all iterations, so that they can be compared.
    """
    empty, history = np.zeros(0), result.history
    if result.target is None:
        return empty, empty, "It needs the target: give it as `steinkern.load(path, target=...)`."
    if result.sampler is not None and not result.sampler.traits.differentiates:
        return empty, empty, "It needs the gradient of the target, which this sampler does without."
    if result.settings.get("data shapes") and data is None:
        return empty, empty, "It needs the data: give them as `result.report(directory, data)`."
    if history.particles is None or result.shared is not None:
        points, step = np.asarray(result.points)[None, :_MAX_PAIRED], np.array([result.num_steps])
        note = _frames_note(result) or "The shared parameters had other values at earlier steps."
    else:
        records = evenly_spaced_to_last(len(history.step), _MAX_MEASURED)
        step, note = history.step[records], ""
        recorded = jax.tree.map(lambda leaf: leaf[records, :_MAX_PAIRED], history.particles)
        points = np.asarray(_unconstrain(result.target, recorded))
    squared = np.asarray(_squared_discrepancies(result.target, jax.device_put(points), data), np.float64)
    summary = f"IMQ kernel with the bandwidth of the last particles; {squared[-1].clip(0) ** 0.5:.3g} at the end."
    sample_note = f" From the first {_MAX_PAIRED} particles." if len(result.points) > _MAX_PAIRED else ""
    return step, np.sqrt(np.maximum(squared, 0)), f"{summary}{sample_note} {note}".strip()


@compiled
def _unconstrain(target: BoundTarget, recorded: PyTree) -> Float[Array, "k n d"]:
    return jax.vmap(jax.vmap(target.space.unconstrain))(recorded)


@compiled
def _squared_discrepancies(target: BoundTarget, points: Float[Array, "k n d"], data: Batch) -> Float[Array, " k"]:
    kernel = IMQ().adapt(points[-1])
    return jax.lax.map(lambda frame: ksd2(frame, target.scores(frame, data), kernel), points)
