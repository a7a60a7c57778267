"""The status of a result and its warnings, from the numbers of its `Diagnostics` and the facts of its run.

Every statistic of the particles is judged as a z-score: it fails where it is *large*, beyond one of the limits below,
and *significant*, farther from its value at draws than its standard error explains at `LEVEL` over all comparisons.
With no more particles than coordinates the spreads are not judged: such particles cannot have the target's.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..core.messages import Notice, SteinWarning, join_truncated, quantity, ways_out
from ..core.types import warn_caller
from ..results.outcome import Diagnostics, Status
from ..results.result import Result
from ..samplers.sampler import Traits

LEVEL = 3e-4  # the probability that independent draws of a Gaussian fail, over all comparisons
MAX_SHIFT = 0.5  # standard deviations
MAX_SPREAD = 3.0  # of a coordinate or direction, or its inverse: standard deviations within a factor of 1.7
MAX_RATIO = 2.0  # the Stein ratio, or its inverse: standard deviations within a factor of 1.4, on average
WRONG_SIGN = -0.2  # the Stein ratio below which the log density grows outward; at modes it is near 0
MIN_PARTICLES = 4  # fewer have standard errors with so few degrees of freedom that nothing is significant
MIN_MOVE = 1e-12  # of the initial spread: the path of all steps under which particles count as unmoved
REST = 0.1  # of the largest velocity: particles with a smaller one have come to rest
MAX_RHAT, MAX_REFERENCE_RHAT = 1.2, 1.05
"""Chains of `sample` converge, or say so by their errors. Reference chains start from the particles: where these are
too narrow, so are the chains, and the two agree. R-hat is below 1.03 where they mix, and above 1.08 on bananas with too
narrow particles."""
MAX_RANK_RHAT = 1.15  # of ranks; above it there are separate modes, the smaller with at least a tenth of the chains
MAX_CHAIN_ERROR, MAX_REFERENCE_ERROR = 0.03, 0.1  # standard errors of means and standard deviations, relative to the sd
MAX_DRIFT = 0.1  # standard deviations between the halves of the draws
MIN_ACCEPTANCE, MAX_SLOPE_RATIO = 0.5, 30.0  # of the worst chain, and between chains; beyond both there is a funnel
MAX_FOURTH_MOMENT = 12.0  # 3 for a Gaussian
MAX_MEAN_SCORE = 8.0  # standard errors; large, because it is the largest over all coordinates
MAX_DISTANCE = 0.25  # Kolmogorov's, between particles and held-out draws along random directions
MAX_MEAN_DIFFERENCE = 0.2  # standard deviations between particles and reference chains
MAX_SD_RATIO = 1.25  # standard deviations of particles over those of the reference chains, or the inverse
MAX_WRONG_SLOPES = 0.5  # the share of first particles at which the gradient is not the slope

_FOR_SAMPLE = ["ask for more with `num_particles=`", "rescale the parameters", "declare an edge with `support=`"]
SAMPLE = "call `sample`, which needs no tuning"


class RunFacts(NamedTuple):
    """What a judge must know of a run besides the numbers."""

    shape: tuple[int, ...]
    """The numbers of particles and of unconstrained coordinates."""
    name_of: Callable[[int], str]
    """The name of a coordinate."""
    traits: Traits = Traits()
    num_steps: int = 0
    """The number of steps taken, those of earlier fits included."""
    failed: Notice | None = None
    """How a run diverged."""
    ended_by: str = ""
    """What ended the run early: "the callback", "Ctrl-C", …"""
    stopped: bool = False
    """Whether that was not asked for."""
    way_on: str = ""
    """How to continue a run that ended early."""
    converged: bool = False
    """Whether the stopping rule was met."""
    velocity: float = 0.0
    largest_velocity: float = 0.0
    tolerance: float = 0.0
    path: float = np.inf
    """The length of all steps, relative to the initial spread."""
    minibatches: bool = False
    flat: tuple[int, ...] = ()
    """The coordinates on which the log density does not depend."""
    chains: bool = False
    """Whether the result is that of `sample`."""
    compares: bool = False
    """Whether the particles are to be compared with reference chains."""
    hard: bool = False
    """Whether the chains needed many rounds: rarely visited narrow regions make the stated errors too small."""
    notices: tuple[Notice, ...] = ()
    """Warnings about the start of the run, and of the precision."""

    @property
    def velocity_fraction(self) -> float:
        """The velocity, relative to the largest of the run."""
        return self.velocity / (self.largest_velocity or 1.0)


class Judgement(NamedTuple):
    """The end of a run."""

    status: Status
    message: Notice
    warnings: tuple[Notice, ...]


def judge(diagnostics: Diagnostics, run: RunFacts) -> Judgement:
    """The status of a run, its message and all of its warnings."""
    warnings = list(run.notices)
    if stuck := diagnostics.faults.stuck:
        which = ("particle " if len(stuck) == 1 else "particles ") + join_truncated(stuck)
        warnings.append(Notice(
            "stuck",
            f"{which} of {run.shape[0]} left the support in more than five consecutive steps, moved back each time to "
            "an edge that the target does not declare. Declare constraints with `support=`, or take smaller steps.",
        ))  # fmt: skip
    if run.failed is not None:
        message = Notice(run.failed.code, run.failed.text + diagnostics.faults.in_words())
        return Judgement(Status.DIVERGED, message, tuple(warnings))
    causes = list(_about_run(diagnostics, run))
    warnings += causes
    # The battery's ensemble looks for modes, and its particles are not meant as draws. At an edge Stein's identity does
    # not hold (a density with an edge that is not declared).
    explained = any(notice.code in ("wrong-sign", "not-moved", "flat") for notice in causes)
    if run.traits.samples_target and not explained and not _has_edge(diagnostics):
        warnings += _about_particles(diagnostics, run)
    warnings += _about_chains(diagnostics, run)
    distinct = tuple({notice.code: notice for notice in warnings}.values())
    status, message = _ending(run, bool(distinct))
    return Judgement(status, Notice(message.code, message.text + diagnostics.faults.in_words()), distinct)


def issue(notices: Iterable[Notice], result: Result | None = None) -> None:
    """Warn the caller of these notices."""
    for notice in notices:
        warn_caller(SteinWarning(notice, result))


def judge_start(*, zero_gradient: bool, wrong_slopes: float, num_particles: int, coincident: str) -> tuple[Notice, ...]:
    """The warnings about the first particles.

    Args:
        zero_gradient: whether the gradient is zero at all of them although the values differ.
        wrong_slopes: the share of particles at which the gradient is not the slope.
        num_particles: their number.
        coincident: the name of a sampler that moves equal particles together, where all of them are equal.
    """
    notices = []
    if zero_gradient:
        notices.append(Notice(
            "zero-gradient",
            "the gradient of the log density is exactly zero at all first particles, though its value differs between "
            "them: it is constant in pieces (rounding, integers, argmax), or its gradient is cut off (stop_gradient). "
            "Make it differentiable, or use `gradient_free_svgd`.",
        ))  # fmt: skip
    if wrong_slopes > MAX_WRONG_SLOPES:
        notices.append(Notice(
            "wrong-gradient",
            f"the gradient of the log density is not its slope at {round(wrong_slopes * num_particles)} of the "
            f"{num_particles} first particles: it is not differentiable there, its gradient is cut off "
            "(stop_gradient), or its own derivative rule is wrong. Compare with finite differences, or use "
            "`gradient_free_svgd`.",
        ))  # fmt: skip
    if coincident:
        notices.append(Notice(
            "coincident",
            f"all {num_particles} first particles are the same point, and {coincident} moves them together, so that "
            "they never separate. Start from different ones, such as `steinkern.initial.gaussian(key, center, "
            "num_particles)`.",
        ))  # fmt: skip
    return tuple(notices)


def is_wrong_sign(diagnostics: Diagnostics) -> bool:
    """Whether the log density significantly increases away from the particles' mean, as for −log p."""
    ratio, error = diagnostics.stein_ratio, diagnostics.stein_ratio_error
    return ratio < WRONG_SIGN and ratio < -_quantile(diagnostics, 1) * error


def _quantile(diagnostics: Diagnostics, comparisons: int) -> float:
    """The quantile of Student's t at `LEVEL` over the comparisons."""
    from scipy.special import stdtrit  # takes as long to import as the rest of the library

    freedom = min(filter(None, (diagnostics.num_measured, diagnostics.num_batches))) - 1
    return -float(stdtrit(max(freedom, 1), LEVEL / (2 * comparisons)))


def spread_scores(value: np.ndarray, error: np.ndarray, degrees: int) -> np.ndarray:
    """The z-scores of averages of `degrees` values that are distributed nearly as squares, with expectation 1.

    The cube root of such a mean is close to Gaussian (Wilson and Hilferty, 1931), with mean 1 − e²/9 and standard
    deviation e/3, where the relative error e is √(2/degrees) for a Gaussian. A mean below its error counts as that.
    """
    least = np.sqrt(2 / degrees)
    value = np.maximum(value, error)
    relative = np.where(value > 1, np.maximum(error / np.maximum(value, 1), least), least)
    return np.asarray(3 * (np.cbrt(value) - 1 + relative**2 / 9) / relative)


def _about_particles(d: Diagnostics, run: RunFacts) -> Iterator[Notice]:
    """Warnings from the moments of particles and scores."""
    if d.num_measured < MIN_PARTICLES:
        return
    shift, shift_error = np.append(d.shift, d.direction_shift), np.append(d.shift_error, d.direction_shift_error)
    spread, spread_error = np.append(d.spread, d.direction_spread), np.append(d.spread_error, d.direction_spread_error)
    quantile = _quantile(d, 2 * len(shift) + 1)
    root = np.sqrt(d.num_measured)
    score_sd = root * shift_error  # an upper bound of the spread, which is a correlation times it
    shift_error = np.maximum(shift_error, 1 / root)  # at draws sd(s) ≥ 1 in these units, by Cauchy and Schwarz
    shifted = (np.abs(shift) > MAX_SHIFT) & (np.abs(shift) > quantile * shift_error)
    if shifted.any():
        worst = int(np.argmax(np.abs(shift) * shifted))
        where = _where(d, run, shifted)
        yield Notice(
            "shifted",
            f"the particles are biased: {where} the mean score times the standard deviation is "
            f"{shift[worst]:.2g} ± {shift_error[worst]:.1g}, and 0 at draws of the target. {_onwards(run)}",
        )
    if run.shape[0] <= run.shape[1]:
        return
    low, high = (spread_scores(value, spread_error, d.num_measured) for value in (np.maximum(spread, score_sd), spread))
    degrees = d.num_measured * len(d.spread)
    ratio_score = float(spread_scores(np.array(d.stein_ratio), np.array(d.stein_ratio_error), degrees))
    narrow, wide = (spread < 1 / MAX_SPREAD) & (low < -quantile), (spread > MAX_SPREAD) & (high > quantile)
    ratio_narrow = d.stein_ratio < 1 / MAX_RATIO and ratio_score < -quantile
    ratio_wide = d.stein_ratio > MAX_RATIO and ratio_score > quantile
    ratio = f"their Stein ratio is {d.stein_ratio:.2g}, and 1 at draws of the target"

    def found(failed: np.ndarray, worst: int) -> str:
        number = f"{spread[worst]:.2g} ± {spread_error[worst]:.1g}"
        return f"{_where(d, run, failed)} their spread is {number}, and 1 at draws of the target"

    if ratio_narrow or narrow.any():
        what = ratio if ratio_narrow else found(narrow, int(np.argmin(np.where(narrow, spread, np.inf))))
        advice = ["take more particles", "use a kernel with a metric (`matrix_svgd`)", "use heavier tails (`IMQ()`)"]
        further = [*advice, SAMPLE] if run.traits.interacting else ["raise `num_steps`", "raise the step size"]
        if run.chains:
            further = _FOR_SAMPLE
        yield Notice("narrow", f"the particles are too close together (variance collapse): {what}. {ways_out(further)}")
    if ratio_wide or wide.any():
        what = ratio if ratio_wide else found(wide, int(np.argmax(np.where(wide, spread, -np.inf))))
        yield Notice("wide", f"the particles are too far apart: {what}. {_onwards(run)}")


def _where(d: Diagnostics, run: RunFacts, marked: np.ndarray) -> str:
    """The coordinates that are marked; directions across them where none is."""
    places = d.coordinates[np.flatnonzero(marked[: len(d.coordinates)])]
    if not len(places):
        return "along a combination of coordinates"
    return f"in {join_truncated([run.name_of(int(place)) for place in places[:4]], 3)}"


def _onwards(run: RunFacts) -> str:
    """Advice for particles that have not arrived."""
    if run.ended_by:
        return "The run was ended early: go on with it."
    if run.chains:
        return ways_out(_FOR_SAMPLE)
    if not run.traits.interacting:
        return ways_out(["raise `num_steps`", "change the step size", "start closer"])
    noise = ["raise `batch_size`", "let the step size fall"] if run.minibatches else []
    return ways_out([*noise, "raise `num_steps`", "change the learning rate", "use a kernel with a metric", SAMPLE])


def _about_run(d: Diagnostics, run: RunFacts) -> Iterator[Notice]:
    """Warnings about the target and the steps; each of the first three explains what else may be wrong."""
    if is_wrong_sign(d):
        yield Notice(
            "wrong-sign",
            f"the log density grows away from the particles: their Stein ratio is {d.stein_ratio:.2g}, and 1 at draws "
            "of the target. Did you pass −log p in place of log p? If not, it has no upper bound where they are: give "
            "the parameters a proper prior.",
        )
        return
    steps, far = quantity(run.num_steps, "step"), run.velocity_fraction > REST
    not_moved = run.velocity > 0 and run.path < MIN_MOVE and not run.converged and far
    if not_moved:
        yield Notice(
            "not-moved",
            f"the particles have not moved: after {steps} they have come {run.path:.1g} of their spread far, at a "
            f"velocity of {run.velocity:.2g}. The step size is 0, or too small for this precision: raise the learning "
            "rate.",
        )
    if run.flat:
        named = join_truncated([run.name_of(index) for index in run.flat[:6]], 5)
        yield Notice(
            "flat",
            f"the log density does not depend on {named}: its gradient there is exactly zero at all particles, the "
            "first and the last. A density that is flat in a direction cannot be normalized, and the particles spread "
            "along it without end. Leave out parameters that are not used, and give the others a prior.",
        )
    if run.tolerance > 0 and not (run.converged or run.ended_by or run.flat or not_moved):
        yield Notice(
            "not-converged",
            f"the run has not converged: after {steps} the velocity is {run.velocity_fraction:.2g} of its largest "
            f"value, `tolerance` asks for {run.tolerance:.2g}. "
            + ways_out(["raise `num_steps`", "try another learning rate, or a step rule that decays"]),
        )


def _about_chains(d: Diagnostics, run: RunFacts) -> Iterator[Notice]:
    """Warnings from chains: those of `sample`, or the reference chains of a `fit` without a sampler."""
    if run.compares and not len(d.r_hat):
        why = "; ".join(text for text in d.not_checked if text.startswith("reference chains")) or "no chains"
        yield Notice("not-compared", f"the particles were not compared with chains ({why}). {SAMPLE.capitalize()}.")
    if not len(d.r_hat) or (run.chains and run.stopped):  # chains that were cut short have not converged
        return
    max_r_hat = MAX_RHAT if run.chains else MAX_REFERENCE_RHAT
    max_error = (MAX_CHAIN_ERROR / (2 if run.hard else 1)) if run.chains else MAX_REFERENCE_ERROR
    r_hat, worst = float(d.r_hat.max()), run.name_of(int(np.argmax(d.r_hat)))
    if d.missed_component:
        yield Notice("missed-component", d.missed_component)
    if r_hat > max_r_hat and d.rank_r_hat > MAX_RANK_RHAT:
        yield Notice(
            "modes-apart",
            f"chains stay apart in {worst!r} (R-hat {r_hat:.2f}): there are separate modes, and how much mass each has "
            "is not known. Compare several starts, remove symmetries such as exchangeable labels, or see whether the "
            "modes are real.",
        )
    elif r_hat > max_r_hat:
        yield Notice(
            "slow-chains",
            f"chains move slowly in {worst!r} (R-hat {r_hat:.2f}), so that its mean and spread are not known. The "
            "usual cause is a funnel, as in a hierarchy with few data a group: write it non-centered.",
        )
    elif float(d.chain_errors.max()) > max_error or (run.chains and d.drift > MAX_DRIFT):
        yield Notice(
            "not-settled",
            f"means and spreads are not settled, least of all in {run.name_of(int(np.argmax(d.chain_errors)))!r} "
            f"(standard errors of up to {d.chain_errors.max():.2g} of a standard deviation): scales differ from place "
            "to place, as in a funnel or along a sharp bend. Write a hierarchy non-centered, other parameters so that "
            "they depend less on one another, and see that the density is proper.",
        )
    if d.lowest_acceptance < MIN_ACCEPTANCE and d.slope_ratio > MAX_SLOPE_RATIO:
        yield Notice(
            "uneven-curvature",
            f"curvature varies strongly (some chains accept {d.lowest_acceptance:.0%} of their moves, and the slope "
            f"differs {d.slope_ratio:.0f}-fold between chains): a funnel, whose narrow end is seen too little. Write a "
            "hierarchy non-centered.",
        )
    if run.chains:
        yield from _about_draws(d, run)
    mean_part = np.abs(d.mean_differences) / MAX_MEAN_DIFFERENCE
    sd_part = np.abs(np.log(np.maximum(d.sd_ratios, 1e-300))) / np.log(MAX_SD_RATIO)
    off = (mean_part > 1) | (sd_part > 1)
    if off.any():
        place = int(np.argmax(mean_part + sd_part))
        others = f", and in {int(off.sum()) - 1} others" if off.sum() > 1 else ""
        yield Notice(
            "differs-from-chains",
            f"the particles differ from reference chains in {run.name_of(place)!r}{others}: the mean by "
            f"{abs(d.mean_differences[place]):.2g} standard deviations, and the standard deviation is "
            f"{d.sd_ratios[place]:.2f} of theirs. The target's shape is not one that these particles can take: "
            f"{SAMPLE}.",
        )


def _has_edge(d: Diagnostics) -> bool:
    return d.mean_score > MAX_MEAN_SCORE or d.outside > 0


def _about_draws(d: Diagnostics, run: RunFacts) -> Iterator[Notice]:
    """Warnings about the draws of `sample` and the particles that stand for them."""
    if len(d.fourth_moment) and d.fourth_moment.max() > MAX_FOURTH_MOMENT:
        yield Notice(
            "heavy-tails",
            f"the tails of {run.name_of(int(d.fourth_moment.argmax()))!r} are heavy (fourth moment "
            f"{d.fourth_moment.max():.0f} where a Gaussian has 3): the stated error of its standard deviation is too "
            "small. Rely on quantiles, or give it a prior with lighter tails.",
        )
    if _has_edge(d):
        yield Notice(
            "edge",
            f"the density has an edge ({quantity(d.outside, 'support point')} beyond it, replaced by draws, and the "
            f"mean of its gradient {d.mean_score:.0f} standard errors from 0): declare the support with `support=`.",
        )
    if d.distance > MAX_DISTANCE:
        yield Notice(
            "few-particles",
            f"the particles differ from held-out draws by {d.distance:.2f} along some direction (Kolmogorov's "
            "distance): they are too few for this target: ask for more with `num_particles=`.",
        )


def _ending(run: RunFacts, warned: bool) -> tuple[Status, Notice]:
    """The status of a run that has not diverged, and its message."""
    steps = quantity(run.num_steps, "step")
    if run.converged:
        what = "means and spreads have settled"
        if not run.chains:
            what = f"the velocity fell to {run.velocity_fraction:.2g} of its largest value after {steps}"
        if warned:
            return Status.FINISHED, Notice("converged-but-failed", f"{what}, and checks failed: see the warnings.")
        return Status.CONVERGED, Notice("converged", f"{what}.")
    if run.ended_by:
        status = Status.STOPPED if run.stopped else Status.FINISHED
        return status, Notice("ended-early", f"{run.ended_by} ended the run after {steps}; {run.way_on}.")
    return Status.FINISHED, Notice(
        "all-steps",
        f"all steps were taken; the velocity is {run.velocity:.3g}, {run.velocity_fraction:.2g} of its largest.",
    )
