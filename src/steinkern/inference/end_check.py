"""The end of a run: the check of its particles against the target, at a tenth of the run's cost, and its status."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array

from ..core.multihost import on_host
from ..core.notices import Notice, Phrase, quantity
from ..core.types import Batch, Points, PyTree
from ..results.result import Status
from ..results.verdict import Verdict, not_judged
from .advice import STILL_LARGEST, velocity_fraction
from .drive import Ending
from .loop import LONG_STEPS, Look, batch_of, look
from .recovery import move_all_back, move_back
from .run import Run
from .stein_test import RATIOS, ScoreSum, judge

SHARE = 0.1
"""The cost of the check, as a share of the run's evaluations."""
LEAST_BATCHES = 5
"""The least number of batches in the check, even where they exceed that share."""
SETTLED, SETTLED_SCATTER = 100, 0.5
"""After 100 steps, averages over particles that repel one another scatter less than those of independent draws.

Healthy runs of `benchmarks/verdicts.py` have shifts of a twentieth of the standard error of draws, and of 1.2 at most
with minibatches, so half of that standard error leaves a margin.
"""
_LINES = 20  # records of the history whose Stein ratios are checked after Ctrl-C


@dataclass(frozen=True)
class EndCheck:
    """The evaluation of the last particles."""

    outside: int
    """The number of particles at which the run left the log density or its gradient not finite."""
    moved_back: bool
    """Whether those of a run that diverged were moved back to where both are finite."""
    particles: PyTree
    """The last particles, in the parameters' own coordinates."""
    scores: Array
    """The scores at the last particles, on the batch of the check before the run."""
    verdict: Verdict
    failures: list[str]
    """Errors inside the checks. They are collected instead of raised, so that the result is not lost."""


def check_end(run: Run, batch: Batch, ending: Ending) -> EndCheck:
    """Check the particles of a run that has ended, after moving back those at which the target is not finite.

    Args:
        run: the run at its end.
        batch: a minibatch of the run's size; all data for a run without minibatches.
        ending: why the run took no further step. After Ctrl-C no other batches are evaluated.
    """
    seen = _look(run, run.loop.state.points, batch)
    outside = int(np.sum(~_finite(seen)))
    moved_back = False
    if outside:

        def finite_at(points: Points) -> np.ndarray:
            return _finite(_look(run, points, batch))

        if run.loop.healthy and move_back(run, finite_at):
            outside = 0
        else:
            moved_back = move_all_back(run, finite_at)
        if moved_back or not outside:
            run.recorder.amend(on_host(run.loop.state.points))
            seen = _look(run, run.loop.state.points, batch)
    failures: list[str] = []
    verdict = _verdict(run, seen.scores, outside, ending, failures)
    return EndCheck(outside, moved_back, seen.particles, seen.scores, verdict, failures)


def _look(run: Run, points: Points, batch: Batch) -> Look:
    return look(run.sampler, run.target_now, points, batch, run.loop.step)


def _finite(seen: Look) -> np.ndarray:
    """(n,) bool: whether the log density and its gradient are finite at each particle."""
    return np.asarray(np.isfinite(on_host(seen.log_densities)) & np.isfinite(on_host(seen.scores)).all(axis=1))


def _verdict(run: Run, scores: Array, outside: int, ending: Ending, failures: list[str]) -> Verdict:
    if not run.loop.healthy or outside:
        return not_judged("the run diverged")
    try:
        return _check_particles(run, scores, ending is Ending.INTERRUPTED)
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
        return not_judged(f"the check itself failed ({type(error).__name__})")


_ENDED_BY = {
    Ending.CALLBACK: (Status.FINISHED, "the callback ended"),
    Ending.INTERRUPTED: (Status.STOPPED, "Ctrl-C ended"),
    Ending.NOT_SAVED: (Status.STOPPED, "a checkpoint that could not be written ended"),
}


def outcome(run: Run, end: EndCheck, ending: Ending, kept: bool) -> tuple[Status, Notice]:
    """The status of a run and its message; `kept` says whether its last step is in a checkpoint."""
    loop, verdict = run.loop, end.verdict
    if loop.healthy and end.outside:
        number, steps = quantity(end.outside, "particle"), quantity(int(loop.step), "step")
        back = ". They were moved back along their last step" if end.moved_back else ""
        return Status.DIVERGED, Notice(
            "outside-support",
            f"the log density, or its gradient, is NaN or infinite at {number} after {steps}{back}. Likely causes: (a) "
            "they left the support, where its gradient is still finite: declare constraints with ",
            Phrase.SUPPORT,
            "; (b) the step size is too large: ",
            Phrase.LOWER_RATE,
            ".",
        )
    if not loop.healthy:
        exploded = (
            f"leads to numbers that are not finite: it is the {LONG_STEPS + 1}th in a row to move particles far "
            "beyond any earlier move"
        )
        what = exploded if loop.long_in_a_row >= LONG_STEPS else "gave numbers that are not finite"
        coarse = "float32 is too coarse for the target, or its" if loop.state.points.dtype.itemsize < 8 else "its"
        enable = "enable x64, or " if loop.state.points.dtype.itemsize < 8 else ""
        back = f", {end.outside} of them moved back to where the target is finite" if end.moved_back else ""
        return Status.DIVERGED, Notice(
            "not-finite",
            f"step {int(loop.step) + 1} {what}; the particles are those before it{back}. "
            "Likely causes: (a) the step size is too large: ",
            Phrase.LOWER_OR_ADAPT_RATE,
            "; (b) the log density or its gradient is NaN or infinite where the particles went: declare constraints "
            "with ",
            Phrase.SUPPORT,
            ", or start closer; (c) the curvature is singular or indefinite: ",
            Phrase.MORE_DAMPING,
            f"; (d) {coarse} numbers overflow: {enable}bring the parameters to scales nearer 1.",
        )
    if loop.converged:
        ratio = float(loop.info.velocity_norm / loop.largest_velocity)
        heard = " Ctrl-C came as it did." if ending is Ending.INTERRUPTED else ""
        fell = f"the velocity fell to {ratio:.2g} of its largest value after {quantity(int(loop.step), 'step')}"
        if verdict.passed is False:
            failed = f"{fell}, and the particles fail the check against the target.{heard}"
            return Status.FINISHED, Notice("at-rest-and-fails", failed)
        if verdict.unclear:
            unclear = f"{fell}, and the check against the target is unclear.{heard}"
            return Status.FINISHED, Notice("at-rest-and-unclear", unclear)
        return Status.CONVERGED, Notice("converged", f"{fell}.{heard}")
    if ending in _ENDED_BY:
        status, ended = _ENDED_BY[ending]
        way_on = Phrase.SAME_CALL if kept else Phrase.GO_ON
        return status, Notice("ended-early", f"{ended} the run after {quantity(int(loop.step), 'step')}; ", way_on, ".")
    fraction = velocity_fraction(run)
    still = verdict.passed is False and run.sampler.deterministic and run.done > 1 and fraction > STILL_LARGEST
    uphill = ": the particles are not moving downhill" if still else ""
    return Status.FINISHED, Notice(
        "all-steps",
        f"all steps were taken; the velocity is {float(loop.info.velocity_norm):.3g}, {fraction:.2g} of its largest"
        f"{uphill}.",
    )


def _check_particles(run: Run, scores: Array, interrupted: bool) -> Verdict:
    sampler, target = run.sampler, run.target_now
    if not sampler.differentiates:
        return not_judged("the check needs the gradient of the log density, which this sampler does without")
    if run.loop.state.points.dtype.itemsize < 4:
        return not_judged("half precision is too coarse for it")
    power = _last_power(run)
    if power == 0:
        return not_judged("the run ended at the power 0 of the target, which is flat")
    points = on_host(run.loop.state.points)
    names = target.bound_space.layout.coordinate_names()
    tempered = "" if power == 1 else f"Against the target to the power {power:g}, at which the run ended"
    sampled = target.sampled_rows(run.data, run.batch_size)
    if not sampled:
        own = power * on_host(scores).astype(np.float64)
        verdict = judge(points, own, names, note=tempered, scatter=_scatter(run))
    elif interrupted:
        verdict = _by_the_history(run)
    else:
        verdict = _on_batches(run, points, sampled, power, names, tempered)
    if not sampler.samples_target and not verdict.outward:
        return not_judged("this sampler looks for modes, and its particles are not meant as draws")
    return verdict


def _on_batches(
    run: Run,
    points: np.ndarray,
    sampled: dict[str, tuple[int, int]],
    power: float,
    names: tuple[str, ...],
    note: str,
) -> Verdict:
    """The verdict from scores on batches: of all rows where the budget allows it, else of a sample."""
    target, budget = run.target_now, max(int(SHARE * run.done), LEAST_BATCHES)
    passes, seen = data_passes(sampled, budget)
    scores = ScoreSum(points)
    for rows, weight in passes:
        batch = batch_of(target, run.data, rows)
        on_batch = _look(run, run.loop.state.points, batch).scores
        scores.add(power * on_host(on_batch).astype(np.float64), weight)
    if seen < 1:
        counts = ", ".join(f"{round(seen * size):,} of {size:,}" for size, _ in sampled.values())
        note = " ".join(filter(None, [note, f"On {counts} rows"]))
    errors = None if seen == 1 else scores.errors(seen)
    return judge(points, scores.total, names, rows=errors, note=note, scatter=_scatter(run))


def data_passes(
    sampled: dict[str, tuple[int, int]], budget: int
) -> tuple[list[tuple[dict[str, np.ndarray], float]], float]:
    """Batches of rows with weights such that the weighted sum of their scores estimates that of all data.

    A batch of b of N rows has the score B + (N/b) Σ g, where B is the prior's. Disjoint batches with weights b/N add up
    to the score on all rows where b divides N. The r rows left over form one batch of weight b/(qN), which holds each
    q = ⌊b/r⌋ times and is filled up with one row f; a batch of f alone, of weight −(b − qr)/(qN), cancels the filling.
    The weights add up to 1 and every row counts once, so that B and the sum are exact.

    Args:
        sampled: for everything that is subsampled, the number of rows and the number in a batch.
        budget: the most batches.

    Returns:
        The batches with their weights, and the share of the rows that they cover.
    """
    if len(sampled) == 1:
        ((name, (size, length)),) = sampled.items()
        whole, left = divmod(size, length)
        filled = left and length % left
        if whole + bool(left) + bool(filled) <= budget:
            return [({name: rows}, weight) for rows, weight in _every_row(size, length)], 1.0
    disjoint = min(size // length for size, length in sampled.values())
    number = min(budget, max(disjoint, LEAST_BATCHES))
    generator = np.random.default_rng(0)

    def draw(size: int, length: int) -> np.ndarray:
        if number * length <= size:
            return generator.choice(size, (number, length), replace=False)
        return np.stack([generator.choice(size, length, replace=False) for _ in range(number)])

    chosen = {name: draw(size, length) for name, (size, length) in sampled.items()}
    # Batches that share rows count as one. Rows of several plates are drawn independently, and no number of batches
    # contains all their pairs.
    counted = number if number <= disjoint else 1
    share = min(counted * length / size for size, length in sampled.values())
    return [({name: rows[i] for name, rows in chosen.items()}, 1 / number) for i in range(number)], min(share, 0.999)


def _every_row(size: int, length: int) -> Iterator[tuple[np.ndarray, float]]:
    whole, left = divmod(size, length)
    rows = np.arange(size)
    for place in range(whole):
        yield rows[place * length : (place + 1) * length], length / size
    if left:
        copies, spare = divmod(length, left)
        filling = np.zeros(spare, rows.dtype)
        yield np.concatenate([np.tile(rows[whole * length :], copies), filling]), length / (copies * size)
        if spare:
            yield np.zeros(length, rows.dtype), -spare / (copies * size)


def _by_the_history(run: Run) -> Verdict:
    """The verdict after Ctrl-C, from the recorded Stein ratios of the last steps, each on its own minibatch."""
    ratios = np.asarray(run.recorder.lines().info.stein_ratio[-_LINES:], np.float64)
    if len(ratios) < _LINES // 2 or not np.isfinite(ratios).all():
        return not_judged("Ctrl-C ended the run, and too few of its steps were recorded")
    ratio, error = float(np.median(ratios)), float(np.std(ratios, ddof=1) / math.sqrt(len(ratios)))
    far = abs(ratio - 1) > 4 * error
    low, high = far and ratio < RATIOS[0], far and ratio > RATIOS[1]
    note = f"After Ctrl-C by the last {len(ratios)} Stein ratios alone; means and single spreads were not checked"
    return Verdict(not (low or high), note, stein_ratio=ratio, stein_ratio_error=error, ratio_low=low, ratio_high=high)


def _scatter(run: Run) -> float:
    """The scatter of averages over these particles, relative to that of independent draws."""
    settles = run.sampler.interacting and run.sampler.deterministic and run.done >= SETTLED
    return SETTLED_SCATTER if settles else 1.0


def _last_power(run: Run) -> float:
    """The power of the target that the last step followed."""
    if run.tempering is None or not run.done:
        return 1.0
    return float(run.tempering(run.loop.step - 1))
