"""Reliability diagrams: accuracy against confidence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..class_probabilities import ClassCalibration
from .style import COLOURS, QUIET, STYLE, load, new_figure

if TYPE_CHECKING:
    import matplotlib.figure


def reliability(
    calibrations: ClassCalibration | Mapping[str, ClassCalibration],
    *,
    title: str | None = None,
    colours: Mapping[str, str] | None = None,
) -> "matplotlib.figure.Figure":
    """A reliability diagram: the accuracy of predicted classes against their mean probability, in bins.

    Calibrated predictions lie on the diagonal; points below it are overconfident. The area of a point grows with the
    number of predictions in its bin, and its bar is the 68 percent interval of their accuracy (Wilson's).

    ```python
    calibration = result.predict(logits, (features,)).probabilities(steinkern.Categorical()).calibration(labels)
    steinkern.plot.save(steinkern.plot.reliability(calibration), "reliability.png")
    ```

    Args:
        calibrations: of `ClassProbabilities.calibration`; or several by their labels, to compare them.
        title: above the panel.
        colours: by label; those without one take the next of the default colours.
    """
    shown = dict(calibrations) if isinstance(calibrations, Mapping) else {"": calibrations}
    if not shown or not all(isinstance(entry, ClassCalibration) for entry in shown.values()):
        raise ValueError(
            "`calibrations` must be what `ClassProbabilities.calibration(labels)` returns, or a dictionary of these, "
            f"got {calibrations!r}."
        )
    if len(shown) > len(COLOURS):
        raise ValueError(f"`calibrations` must be at most {len(COLOURS)}, to be told apart, got {len(shown)}.")
    matplotlib = load()
    with matplotlib.rc_context(STYLE):
        figure = new_figure((3.2, 3.2 + 0.17 * len(shown) + (0.25 if title else 0.0)))
        axes: Any = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        for (label, one), default in zip(shown.items(), COLOURS[1:] + COLOURS[:1], strict=False):
            colour = (colours or {}).get(label, default)
            filled = one.count > 0
            confidence, accuracy, count = one.confidence[filled], one.accuracy[filled], one.count[filled]
            axes.vlines(confidence, *_wilson(accuracy, count), color=colour, linewidth=0.9, zorder=2)
            said = f"{label}: calibration error {one.error:.3f}" if label else f"calibration error {one.error:.3f}"
            sizes = 6 + 60 * count / count.max()
            axes.scatter(
                confidence, accuracy, sizes, color=colour, edgecolors="white", linewidths=0.5, zorder=3, clip_on=False,
                label=said,
            )  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="probability of the predicted class")
        axes.set_ylabel("share of right predictions")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", fontsize=7)
        if title:
            axes.set_title(title)
    return figure


def _wilson(share: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of Wilson's interval of one standard error for a share; not of length 0 at the shares 0 and 1."""
    centre = (share + 0.5 / number) / (1 + 1 / number)
    half = np.sqrt(share * (1 - share) / number + 0.25 / number**2) / (1 + 1 / number)
    return centre - half, centre + half
