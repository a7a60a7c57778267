"""The status of a result and its warnings, from the numbers of its `Diagnostics` and the end of its run.

Every statistic of the particles is judged as a z-score: it fails where it is *large*, beyond one of the limits below,
and *significant*, farther from its value at draws than `MIN_Z` standard errors, or more where these are of few
particles or minibatches. With no more particles than coordinates small spreads are not judged: such particles cannot
have the target's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ..core.messages import Notice, SteinWarning, join_truncated, quantity, ways_out
from ..core.multihost import on_host
from ..core.types import warn_caller
from ..results.outcome import Diagnostics, Status
from ..results.result import Result
from ..samplers.sampler import AbstractSampler
from .loop import Evaluation

MIN_Z = 5.0  # standard errors; a few hundred averages over draws of a Gaussian stay below it
MAX_SHIFT = 0.5  # standard deviations
MAX_SPREAD = 3.0  # of a coordinate or direction, or its inverse: standard deviations within a factor of 1.7
MAX_RATIO = 2.0  # the Stein ratio, or its inverse: standard deviations within a factor of 1.4, on average
MAX_WRONG_RATIO = -0.2  # the Stein ratio below which the log density grows outward; at modes it is near 0
MIN_SIGN_Z = 3.6  # standard errors of that ratio below 0: it is one average
MIN_MOVE = 1e-12  # of the initial spread: particles whose path is shorter count as unmoved
MAX_REST_VELOCITY = 0.1  # of the largest velocity: particles with a smaller one have come to rest
MAX_RHAT, MAX_REFERENCE_RHAT = 1.2, 1.05
"""Chains of `sample` converge, or say so by their errors. Reference chains start from the particles: where these are
too narrow, so are the chains, and the two agree. R-hat is below 1.03 where they mix, and above 1.08 on bananas with too
narrow particles."""
MAX_CHAIN_ERROR = 0.1  # standard errors of means and standard deviations, relative to the sd
MAX_DRIFT = 0.1  # standard deviations between the halves of the draws
MIN_ACCEPTANCE, MAX_SLOPE_RATIO = 0.5, 5.0  # of the worst chain; between the ends of a coordinate, or its inverse
MAX_FOURTH_MOMENT = 12.0  # 3 for a Gaussian
MAX_MEAN_SCORE = 8.0  # standard errors; large, because it is the largest over all coordinates
MAX_DISTANCE = 0.25  # Kolmogorov's, between particles and held-out draws along random directions
MAX_MEAN_DIFFERENCE = 0.2  # standard deviations between particles and reference chains
MAX_SD_RATIO = 1.25  # standard deviations of particles over those of the reference chains, or the inverse
MAX_WRONG_SLOPES = 0.5  # the share of first particles at which the gradient is not the slope

_FOR_SAMPLE = ["ask for more with `num_particles=`", "rescale the parameters", "declare an edge with `support=`"]
SAMPLE = "call `sample`, which needs no tuning"


def judge(result: Result) -> Result:
    """The result with all of its warnings, and with a status and message that take them into account.

    Args:
        result: as its steps ended, with the warnings of its start.
    """
    diagnostics, status, message, warnings = result.diagnostics, result.status, result.message, list(result.warnings)
    if stuck := diagnostics.faults.stuck:
        which = ("particle " if len(stuck) == 1 else "particles ") + join_truncated(stuck)
        warnings.append(Notice(
            "stuck",
            f"{which} of {len(result.points)} left the support in more than five consecutive steps, moved back each "
            "time to an edge that the target does not declare. Declare constraints with `support=`, or take smaller "
            "steps.",
        ))  # fmt: skip
    if status is not Status.DIVERGED:
        causes = list(_about_run(result))
        warnings += causes
        # The particles of a deep ensemble are modes, not draws. At an edge that is not declared Stein's identity does
        # not hold.
        explained = any(notice.code in ("wrong-sign", "not-moved", "flat") for notice in causes)
        if result.sampler.traits.samples_target and not explained and not _has_edge(diagnostics):
            warnings += _about_particles(result)
        warnings += _about_chains(result)
    if status is Status.CONVERGED and warnings:
        status = Status.FINISHED
        message = Notice("converged-but-failed", f"{message.text[:-1]}, and checks failed: see the warnings.")
    message = Notice(message.code, message.text + diagnostics.faults.in_words())
    return replace(result, status=status, message=message, warnings=tuple(warnings))


def issue(notices: Iterable[Notice], result: Result | None = None) -> None:
    """Warn the caller of these notices."""
    for notice in notices:
        warn_caller(SteinWarning(notice, result))


def judge_start(
    sampler: AbstractSampler, points: np.ndarray, first: Evaluation, wrong_slopes: float
) -> tuple[Notice, ...]:
    """The warnings about the first particles.

    Args:
        sampler: of the run.
        points: the first particles, or some of them.
        first: the target there.
        wrong_slopes: the share of particles at which the gradient is not the slope.
    """
    n, traits, notices = len(first.log_densities), sampler.traits, []
    if traits.differentiates and not on_host(first.nonzero).any() and np.unique(on_host(first.log_densities)).size > 1:
        notices.append(Notice(
            "zero-gradient",
            "the gradient of the log density is exactly zero at all first particles, though its value differs between "
            "them: it is constant in pieces (rounding, integers, argmax), or its gradient is cut off (stop_gradient). "
            "Make it differentiable, or use `gradient_free_svgd`.",
        ))  # fmt: skip
    elif wrong_slopes > MAX_WRONG_SLOPES:
        notices.append(Notice(
            "wrong-gradient",
            f"the gradient of the log density is not its slope at {round(wrong_slopes * n)} of the {n} first "
            "particles: it is not differentiable there, its gradient is cut off (stop_gradient), or its own derivative "
            "rule is wrong. Compare with finite differences, or use `gradient_free_svgd`.",
        ))  # fmt: skip
    if n > 1 and (traits.interacting or traits.deterministic) and np.all(points == points[:1]):
        notices.append(Notice(
            "coincident",
            f"all {n} first particles are the same point, and {type(sampler).__name__} moves them together, so that "
            "they never separate. Start from different ones, such as `steinkern.initial.gaussian(key, center, "
            "num_particles)`.",
        ))  # fmt: skip
    return tuple(notices)


def is_wrong_sign(diagnostics: Diagnostics) -> bool:
    """Whether the log density significantly increases away from the particles' mean, as for −log p."""
    ratio, error = diagnostics.stein_ratio, diagnostics.stein_ratio_error
    return ratio < MAX_WRONG_RATIO and ratio < -_quantile(diagnostics, MIN_SIGN_Z) * error


def _quantile(diagnostics: Diagnostics, z: float) -> float:
    """The quantile of Student's t, nearly, where that of a Gaussian is `z` (Wallace, 1959)."""
    freedom = min(filter(None, (diagnostics.num_measured, diagnostics.num_batches))) - 1
    return float(np.sqrt(freedom * np.expm1(z**2 / freedom)))


def _about_particles(result: Result) -> Iterator[Notice]:
    """Warnings from the moments of particles and scores."""
    d, (num_particles, dimension) = result.diagnostics, result.points.shape
    if not d.num_measured:
        return
    shift, shift_error = np.append(d.shift, d.direction_shift), np.append(d.shift_error, d.direction_shift_error)
    limit, root = _quantile(d, MIN_Z), np.sqrt(d.num_measured)
    score_sd = root * shift_error  # an upper bound of the spread, which is the correlation of x and s times it
    shift_error = np.maximum(shift_error, 1 / root)  # at draws sd(s) ≥ 1 in these units, by Cauchy and Schwarz
    shifted = (np.abs(shift) > MAX_SHIFT) & (np.abs(shift) > limit * shift_error)
    if shifted.any():
        worst = int(np.argmax(np.abs(shift) * shifted))
        where = _coordinates(result, shifted)
        yield Notice(
            "shifted",
            f"the particles are biased: {where} the mean score times the standard deviation is "
            f"{shift[worst]:.2g} ± {shift_error[worst]:.1g}, and 0 at draws of the target. {_advice(result)}",
        )
    # The spreads of coordinates and directions, and last the Stein ratio, their average over the coordinates. Such
    # averages are distributed nearly as those of squares, whose cube root is close to Gaussian (Wilson and Hilferty,
    # 1931). A spread below its standard error is replaced by that error.
    spread = np.concatenate([d.spread, d.direction_spread, [d.stein_ratio]])
    error = np.concatenate([d.spread_error, d.direction_spread_error, [d.stein_ratio_error]])
    is_ratio = np.arange(len(spread)) == len(spread) - 1
    limits, terms = np.where(is_ratio, MAX_RATIO, MAX_SPREAD), d.num_measured * np.where(is_ratio, len(d.spread), 1)
    relative_error = np.maximum(error / np.maximum(spread, 1), np.sqrt(2 / terms))
    bounded = np.maximum(spread, error)
    low, high = 3 * (np.cbrt([np.maximum(bounded, np.append(score_sd, 0)), bounded]) - 1) / relative_error
    # Along the coordinates of an ill-conditioned Gaussian points and scores hardly correlate, and chance alone makes
    # spreads large. With no more particles than coordinates the correlation, the spread over both standard deviations,
    # is significant too (Fisher, 1921); with more this would leave seven wrong fits of `verdicts-everyday` untold.
    both = np.maximum(np.append(score_sd, 0), np.abs(spread))
    correlation = np.clip(spread / np.where(both > 0, both, 1), 0, 1 - 1e-9)
    correlated = np.arctanh(correlation) * np.sqrt(max(d.num_measured - 3, 0)) > MIN_Z
    narrow = (spread < 1 / limits) & (low < -limit) & (num_particles > dimension)
    wide = (spread > limits) & (high > limit) & (correlated | (num_particles > dimension))

    def describe(failed: np.ndarray) -> str:
        if failed[-1]:
            return f"their Stein ratio is {d.stein_ratio:.2g}, and 1 at draws of the target"
        worst = int(np.argmax(np.abs(spread - 1) * failed))
        number = f"{spread[worst]:.2g} ± {error[worst]:.1g}"
        return f"{_coordinates(result, failed)} their spread is {number}, and 1 at draws of the target"

    if narrow.any():
        ways = ["raise `num_steps`", "raise the step size"]
        if result.sampler.traits.interacting:
            ways = ["take more particles", "use a kernel with a metric (`matrix_svgd`)", "use heavier tails (`IMQ()`)"]
            ways.append(SAMPLE)
        advice = ways_out(_FOR_SAMPLE if result._chains else ways)
        yield Notice(
            "narrow", f"the particles are too close together (variance collapse): {describe(narrow)}. {advice}"
        )
    if wide.any():
        yield Notice("wide", f"the particles are too far apart: {describe(wide)}. {_advice(result)}")


def _coordinates(result: Result, marked: np.ndarray) -> str:
    """The coordinates that are marked; directions across them where none is."""
    coordinates = result.diagnostics.coordinates
    indices = coordinates[np.flatnonzero(marked[: len(coordinates)])]
    if not len(indices):
        return "along a combination of coordinates"
    return f"in {join_truncated([_name_of(result, index) for index in indices[:4]], 3)}"


def _name_of(result: Result, index: np.integer | int) -> str:
    """The name of a coordinate."""
    return str(result.target.space.layout.coordinate_name(int(index)))


def _advice(result: Result) -> str:
    """Advice for particles that have not converged."""
    if result.message.code == "ended-early":
        return "The run was ended early: continue it."
    if result._chains:
        return ways_out(_FOR_SAMPLE)
    if not result.sampler.traits.interacting:
        return ways_out(["raise `num_steps`", "change the step size", "start closer"])
    minibatches = result.settings.get("batch_size") or result.diagnostics.num_batches
    noise = ["raise `batch_size`", "let the step size fall"] if minibatches else []
    return ways_out([*noise, "raise `num_steps`", "change the learning rate", "use a kernel with a metric", SAMPLE])


def _about_run(result: Result) -> Iterator[Notice]:
    """Warnings about the target and the steps; each of the first three explains what else may be wrong."""
    d, loop, history = result.diagnostics, result.loop, result.history
    if is_wrong_sign(d):
        yield Notice(
            "wrong-sign",
            f"the log density grows away from the particles: their Stein ratio is {d.stein_ratio:.2g}, and 1 at draws "
            "of the target. Did you pass −log p in place of log p? If not, it has no upper bound where they are: give "
            "the parameters a proper prior.",
        )
        return
    if result._chains:
        return
    steps, fraction = quantity(result.num_steps, "step"), loop.velocity_fraction
    velocity, longest = float(loop.info.velocity_norm), float(loop.longest_move)
    path = result.num_steps * np.max(history.velocity_norm * history.step_size, initial=0.0)
    not_moved = velocity > 0 and path < MIN_MOVE * longest and not loop.converged and fraction > MAX_REST_VELOCITY
    if not_moved:
        yield Notice(
            "not-moved",
            f"the particles have not moved: after {steps} they have come at most {path / longest:.1g} of "
            f"their spread far, at a velocity of {velocity:.2g}. The step size is 0, or too small for this precision: "
            "raise the learning rate.",
        )
    flat = () if any(notice.code == "zero-gradient" for notice in result.warnings) else d.flat
    if flat:
        named = join_truncated([_name_of(result, index) for index in flat[:6]], 5)
        yield Notice(
            "flat",
            f"the log density does not depend on {named}: its gradient there is exactly zero at all particles, the "
            "first and the last. A density that is flat in a direction cannot be normalized, and the particles spread "
            "along it without end. Leave out parameters that are not used, and give the others a prior.",
        )
    tolerance = result.settings["tolerance"]
    if tolerance and result.message.code == "all-steps" and not (flat or not_moved):
        yield Notice(
            "not-converged",
            f"the run has not converged: after {steps} the velocity is {fraction:.2g} of its largest value, "
            f"`tolerance` asks for {tolerance:.2g}. "
            + ways_out(["raise `num_steps`", "try another learning rate, or a step rule that decays"]),
        )


def _about_chains(result: Result) -> Iterator[Notice]:
    """Warnings from chains: those of `sample`, or the reference chains of a `fit` without a sampler."""
    d, of_sample = result.diagnostics, result._chains
    for text in d.not_checked:
        if text.startswith("reference chains"):
            yield Notice(
                "not-compared", f"the particles were not compared with chains ({text}). {SAMPLE.capitalize()}."
            )
    if not len(d.r_hat) or (of_sample and result.status is Status.STOPPED):  # chains cut short have not converged
        return
    max_r_hat = MAX_RHAT if of_sample else MAX_REFERENCE_RHAT
    r_hat, worst = float(d.r_hat.max()), _name_of(result, np.argmax(d.r_hat))
    if d.missed_component:
        yield Notice("missed-component", d.missed_component)
    unsettled = float(d.chain_errors.max()) > MAX_CHAIN_ERROR or (of_sample and d.drift > MAX_DRIFT)
    budget = f" And {result.message.text} Raise `max_gradients`." if result.message.code == "budget" else ""
    if r_hat > max_r_hat and d.num_clusters > 1:
        yield Notice(
            "modes-apart",
            f"chains stay apart in {worst!r} (R-hat {r_hat:.2f}), in {d.num_clusters} clusters: there are separate "
            "modes, and how much mass each has is not known. Compare several starts, remove symmetries such as "
            f"exchangeable labels, or see whether the modes are real.{budget}",
        )
    elif r_hat > max_r_hat:
        yield Notice(
            "slow-chains",
            f"chains move slowly in {worst!r} (R-hat {r_hat:.2f}), so that its mean and spread are not known. "
            + _about_shape(result)
            + budget,
        )
    elif unsettled:
        yield Notice(
            "not-settled",
            f"means and spreads are not settled, least of all in {_name_of(result, np.argmax(d.chain_errors))!r} "
            f"(standard errors of up to {d.chain_errors.max():.2g} of a standard deviation). "
            + _about_shape(result)
            + budget,
        )
    elif d.lowest_acceptance < MIN_ACCEPTANCE and _is_funnel(d):
        yield Notice(
            "uneven-curvature",
            f"some chains accept {d.lowest_acceptance:.0%} of their moves, and visit a narrow region too rarely. "
            + _about_shape(result),
        )
    if of_sample:
        yield from _about_draws(result)
    mean_part = np.abs(d.mean_differences) / MAX_MEAN_DIFFERENCE
    sd_part = np.abs(np.log(np.maximum(d.sd_ratios, 1e-300))) / np.log(MAX_SD_RATIO)
    differs = (mean_part > 1) | (sd_part > 1)
    if differs.any():
        index = int(np.argmax(mean_part + sd_part))
        others = f", and in {int(differs.sum()) - 1} others" if differs.sum() > 1 else ""
        yield Notice(
            "differs-from-chains",
            f"the particles differ from reference chains in {_name_of(result, index)!r}{others}: the mean by "
            f"{abs(d.mean_differences[index]):.2g} standard deviations, and the standard deviation is "
            f"{d.sd_ratios[index]:.2f} of theirs. The target's shape is not one that these particles can take: "
            f"{SAMPLE}.",
        )


def _is_funnel(d: Diagnostics) -> bool:
    return bool(np.max(np.abs(np.log(d.slope_ratio))) > np.log(MAX_SLOPE_RATIO))


def _about_shape(result: Result) -> str:
    """Why chains move slowly, and advice: a funnel only where slopes differ along a coordinate."""
    d, advice = result.diagnostics, "Take other parameters, which depend less on one another"
    if not _is_funnel(d):
        return f"{advice}, and see that the density is proper."
    index = int(np.argmax(np.abs(np.log(d.slope_ratio))))
    name, ratio = _name_of(result, index), d.slope_ratio[index]
    if ratio > 1:
        return f"Slopes are {ratio:.0f} times as steep where {name!r} is high, as in a funnel or at a bend. {advice}."
    return (
        f"Slopes are {1 / ratio:.0f} times as steep where {name!r} is low: a funnel. If it is the scale of a "
        "hierarchy, write the groups non-centered."
    )


def _has_edge(d: Diagnostics) -> bool:
    return d.mean_score > MAX_MEAN_SCORE


def _about_draws(result: Result) -> Iterator[Notice]:
    """Warnings about the draws of `sample` and the particles that stand for them."""
    d = result.diagnostics
    if len(d.fourth_moment) and d.fourth_moment.max() > MAX_FOURTH_MOMENT:
        yield Notice(
            "heavy-tails",
            f"the tails of {_name_of(result, d.fourth_moment.argmax())!r} are heavy (fourth moment "
            f"{d.fourth_moment.max():.0f} where a Gaussian has 3): the stated error of its standard deviation is too "
            "small. Rely on quantiles, or give it a prior with lighter tails.",
        )
    if _has_edge(d):
        yield Notice(
            "edge",
            f"the density has an edge (the mean of its gradient is {d.mean_score:.0f} standard errors from 0): declare "
            "the support with `support=`.",
        )
    if d.distance > MAX_DISTANCE:
        yield Notice(
            "few-particles",
            f"the particles differ from held-out draws by {d.distance:.2f} along some direction (Kolmogorov's "
            "distance): they are too few for this target: ask for more with `num_particles=`.",
        )
