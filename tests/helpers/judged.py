"""Results of runs that were never run, as the judge leaves them: what their diagnostics alone make of them."""

import dataclasses
from types import SimpleNamespace

import numpy as np

import steinkern as sk
from steinkern.inference.judge import judge
from steinkern.results.result import SAMPLE_METHOD
from tests.helpers.pages import result_of

AT_REST = SimpleNamespace(
    info=SimpleNamespace(velocity_norm=0.0), velocity_fraction=0.0, longest_move=1.0, converged=False
)


def judged(diagnostics: sk.Diagnostics, n: int, d: int, *, of_sample: bool = False) -> sk.Result:
    """A result of n particles in coordinates "x0", "x1", …: of `sample`, converged, or of steps of SVGD."""
    particles = {f"x{i}": np.zeros(n) for i in range(d)}
    target = sk.LogDensity(lambda p: 0.0).bind({name: np.zeros(()) for name in particles})
    result = result_of(particles, settings={"method": SAMPLE_METHOD} if of_sample else {"tolerance": None})
    if of_sample:
        message = sk.Notice("converged", "means and spreads have settled.")
        result = dataclasses.replace(result, status=sk.Status.CONVERGED, message=message)
    changes = {"target": target, "sampler": sk.svgd(), "loop": None if of_sample else AT_REST}
    return judge(dataclasses.replace(result, diagnostics=diagnostics, **changes))
