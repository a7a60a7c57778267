"""A run goes on only from what is whole and its own: damage pushes nothing out, other code and settings are seen."""

import os

import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern import checkpoint as files
from steinkern.checkpoint import Saved, write

from .test_checkpoint import STARTS, Killed, assert_same_end, copied, finished, fit_gaussian, gaussian, killer

__all__ = ["finished"]  # a fixture

# Damage.


@pytest.mark.parametrize("harmed", [1, 2])
def test_checkpoints_after_damage_are_kept_and_gone_on_from(harmed, finished, tmp_path):
    directory = copied(finished, tmp_path)
    for path in sorted(directory.iterdir())[-harmed:]:
        path.write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning, match=r"truncated or altered"), pytest.raises(Killed):
        fit_gaussian(directory, every=2, callback=killer(19))
    assert sorted(path.name for path in directory.glob("*.ckpt")) == [
        "step-000000000016.ckpt",
        "step-000000000018.ckpt",
    ]
    seen = []
    result = fit_gaussian(directory, every=2, callback=lambda step, state, info: seen.append(step))
    assert seen == [19, 20]
    assert_same_end(result, finished[1])


def test_a_warning_of_damage_points_at_the_call_of_fit(finished, tmp_path):
    directory = copied(finished, tmp_path)
    max(directory.iterdir()).write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning) as warned:
        sk.fit(jr.key(0), gaussian, sk.svgd(), STARTS, np.zeros(2), num_steps=20, checkpoint=directory)
    assert [one.filename for one in warned] == [__file__]


def test_what_claims_a_later_step_pushes_no_checkpoint_out(tmp_path):
    (tmp_path / "step-000000000900.ckpt").write_bytes(b"")
    (tmp_path / "step-none.ckpt").write_bytes(b"")
    store = files.Store(tmp_path, {})
    for step in (1, 2, 3):
        store.save(step, [], {})
    assert {"step-000000000002.ckpt", "step-000000000003.ckpt"} < set(os.listdir(tmp_path))
    with pytest.warns(RuntimeWarning, match="The one before it is used"):
        assert store.latest().step == 3


def test_a_checkpoint_under_the_name_of_another_step_is_damage(tmp_path):
    write(tmp_path / "step-000000000009.ckpt", Saved(1, {}, {}, []))
    with pytest.warns(RuntimeWarning, match="is of step 1, not of its name's"):
        assert files.Store(tmp_path, {}).latest() is None


def test_a_checkpoint_that_cannot_be_opened_is_damage(finished, tmp_path):
    directory = copied(finished, tmp_path)
    (directory / "step-000000000099.ckpt").mkdir()
    with pytest.warns(RuntimeWarning, match="cannot be read: Is a directory"):
        assert_same_end(fit_gaussian(directory), finished[1])
