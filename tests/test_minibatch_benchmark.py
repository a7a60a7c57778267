"""The benchmark of minibatches: what is told of a run. Nothing long is run."""

import numpy as np
import pytest

from benchmarks.posteriors import minibatch
from benchmarks.posteriors.minibatch import Outcome

REFERENCE = {"mean": [1.0, 2.0], "sd": [0.5, 10.0]}


def outcome(*errors: tuple[float, float], warned: bool = False) -> Outcome:
    """A run with these errors of means, in standard deviations, and of standard deviations, an epoch after another."""
    means = np.array([[1.0 + 0.5 * mean, 2.0] for mean, _ in errors])
    sds = np.array([[0.5, 10.0 * (1 + sd)] for _, sd in errors])
    return Outcome(1.0 + np.arange(len(errors)), means, sds, warned)


def test_epochs_to_reach_are_the_first_at_which_both_errors_are_small():
    number = outcome((1, 0), (0.1, 0.5), (0.1, -0.1), (0.3, 0)).numbers(REFERENCE)
    assert number["epochs_to_reach"] == 3
    assert (number["good"], number["silent_failure"], number["epochs"]) == (0, 1, 4)
    assert number["max_mean_error"] == pytest.approx(0.3)


def test_a_run_that_is_not_finite_is_never_good():
    number = outcome((np.nan, 0), warned=True).numbers(REFERENCE)
    assert np.isnan(number["epochs_to_reach"])
    assert (number["good"], number["silent_failure"], number["max_mean_error"]) == (0, 0, np.inf)


def test_a_rival_has_its_best_step_size():
    sizes = {0.1: outcome((0.5, 0)), 0.3: outcome((0.1, 0.1)), 1.0: outcome((np.nan, 0))}
    best = minibatch.best_step_size(sizes, REFERENCE)
    assert best["step_size"] == 0.3
    assert best["good"] == 1


def test_chains_are_averaged_over_the_second_half_of_their_records_and_particles_are_not():
    recorded = np.arange(4.0)[:, None, None] + np.array([[-1.0], [1.0]])  # (records, particles, 1)
    means, sds = minibatch.moments(recorded, averaged=True)
    np.testing.assert_allclose(means[:, 0], [0, 1, 1.5, 2.5])
    np.testing.assert_allclose(sds[2, 0], np.sqrt(1 + 0.25))
    means, sds = minibatch.moments(recorded, averaged=False)
    np.testing.assert_allclose(means[:, 0], [0, 1, 2, 3])
    np.testing.assert_allclose(sds, 1)
