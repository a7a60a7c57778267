"""Ctrl-C ends a run well: with its result and a checkpoint, soon, and never unheard."""

import os
import signal
import threading

import numpy as np
import pytest

import steinkern as sk
from steinkern.inference import run
from tests.inference.test_checkpoint import STARTS, assert_same_end, finished, fit_gaussian

__all__ = ["finished"]  # a fixture


def press_ctrl_c(at: int):
    def callback(step, state, info):
        if step == at:
            signal.raise_signal(signal.SIGINT)

    return callback


@pytest.mark.usefixtures("heard")
def test_ctrl_c_ends_with_a_result_and_a_checkpoint(tmp_path, finished):
    result = fit_gaussian(tmp_path, callback=press_ctrl_c(7))
    assert (result.status, result.num_steps) == (sk.Status.STOPPED, 7)
    assert "Ctrl-C ended the run after 7 steps; the same call continues from its checkpoint." in result.message.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert max(os.listdir(tmp_path)) == "step-000000000007.npz"
    assert_same_end(fit_gaussian(tmp_path), finished[1])


@pytest.mark.usefixtures("heard")
def test_ctrl_c_without_checkpoints_ends_with_a_result_to_go_on_from(finished):
    result = fit_gaussian(None, checkpoint_every=None, callback=press_ctrl_c(7))
    assert result.status is sk.Status.STOPPED
    assert "give this result to `fit` to continue it." in result.message.text
    rest = fit_gaussian(None, 13, checkpoint_every=None, particles=result)
    np.testing.assert_array_equal(rest.points, finished[1].points)


@pytest.mark.usefixtures("heard")
def test_a_second_ctrl_c_is_a_keyboard_interrupt():
    def twice(step, state, info):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit_gaussian(None, checkpoint_every=None, callback=twice)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_somebody_else_stays_and_other_threads_run():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        assert fit_gaussian(None, checkpoint_every=None, callback=press_ctrl_c(3)).num_steps == 20
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    results = []
    thread = threading.Thread(target=lambda: results.append(fit_gaussian(None, checkpoint_every=None)))
    thread.start()
    thread.join()
    assert results[0].num_steps == 20


@pytest.mark.usefixtures("heard")
def test_ctrl_c_in_the_last_chunk_is_heard():
    result = fit_gaussian(None, checkpoint_every=None, callback=press_ctrl_c(20))
    assert (result.status, result.num_steps) == (sk.Status.STOPPED, 20)
    assert "Ctrl-C ended the run after 20 steps" in result.message.text
    converged = fit_gaussian(
        None,
        5000,
        checkpoint_every=None,
        tolerance=0.5,
        record_every=5000,
        callback=lambda *now: None,
        particles=STARTS,
    )
    assert converged.status is sk.Status.CONVERGED
    assert "Ctrl-C" not in converged.message.text


@pytest.mark.usefixtures("heard")
def test_ctrl_c_waits_for_no_record(monkeypatch):
    num_steps = 2_000_000_000  # days, and the first record stands at their end
    chunks = []
    take_steps = run.take_steps

    def pressed(run, loop, steps, recorder):
        chunks.append(steps)
        if len(chunks) == 4:
            signal.raise_signal(signal.SIGINT)
        return take_steps(run, loop, steps, recorder)

    monkeypatch.setattr(run, "take_steps", pressed)
    result = fit_gaussian(None, num_steps, checkpoint_every=None, record_every=num_steps)
    assert result.status is sk.Status.STOPPED
    assert len(chunks) == 4
    assert result.num_steps == sum(chunks)
    assert chunks[0] == 1
