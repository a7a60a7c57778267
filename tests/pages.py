"""Records of runs that were never run: what a page needs, without a fit."""

import numpy as np

from steinkern.results.report import Frames, Record, Trace

TRACES = ("velocity norm", "KSD", "Stein ratio", "step size")


def record(sites, frames: Frames | None = None, trace: Trace | None = None, **more) -> Record:
    """A run of five steps of which nothing is known but its particles."""
    traces = dict.fromkeys(TRACES, trace or Trace(np.zeros(0), np.zeros(0)))
    count = len(next(iter(sites.values())))
    known = {"title": "a run", "status": "finished", "message": "it ended.", "settings": {}, "versions": {}}
    return Record(
        **{**known, **more}, num_steps=5, num_particles=count, sites=sites, drawn=sites, frames=frames, traces=traces
    )
