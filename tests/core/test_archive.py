"""Files of arrays: what is read is what was written, and no harmed file is taken for a whole one."""

import os
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from steinkern.core import archive
from steinkern.results.outcome import Faults, Status


class Line(eqx.Module):
    slope: jax.Array
    activation: typing.Callable = jnp.tanh


TREE = {
    "a/b": np.arange(3.0),
    "a": {"b": jnp.ones((2, 3), jnp.bfloat16), "c": {1: (None, [2.5, float("inf"), "text", True])}},
    "key": jr.key(3),
    "record": Faults(moved_back=2, stuck=(1, 2)),
    "enumeration": Status.STOPPED,
    "nothing": np.zeros((0, 2)),
    "number": np.float32(3),
    "complex": np.array(1 + 2j),
    "\ud800\0": np.array([True]),
}


def save(directory, step: int = 7, tree=TREE):
    arrays = {}
    meta = {"tree": archive.pack(tree, arrays, "")}
    archive.save_checkpoint(directory, step, meta, arrays)
    return directory / f"step-{step:012d}.npz"


def load(path):
    meta, arrays = archive.read(path)
    return archive.unpack(meta["tree"], arrays)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if not isinstance(other, jax.Array | np.ndarray | np.generic):
            assert one == other
            continue
        assert (one.dtype, isinstance(one, jax.Array)) == (other.dtype, isinstance(other, jax.Array))
        if not jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(jr.key_data(actual["key"]), jr.key_data(expected["key"]))


def test_a_file_that_the_system_refuses_to_let_grow_is_not_left_behind(tmp_path):
    resource = pytest.importorskip("resource")
    save(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path, 2, {"key": jr.key(0), "large": np.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["step-000000000001.npz"]
    assert_same(load(tmp_path / "step-000000000001.npz"), TREE)


def test_a_tree_comes_back_as_it_was_and_numpy_reads_its_arrays(tmp_path):
    path = save(tmp_path)
    assert_same(load(path), TREE)
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["a/b"], TREE["a/b"])
        assert set(file.files) >= {"a/b_", "key", "number", "meta"}


def test_trees_of_other_classes_come_back_in_the_structure_of_a_template():
    state = (Line(jnp.ones(2)), optax.adam(0.1).init(jnp.arange(3.0)), jr.key(1))
    arrays = {}
    node = archive.pack(state, arrays, "state")
    again = archive.unpack(node, arrays, jax.tree.map(lambda leaf: leaf, state))
    assert isinstance(again[0], Line)
    assert again[0].activation is jnp.tanh
    np.testing.assert_array_equal(again[1][0].mu, state[1][0].mu)
    assert archive.foreign_class({"a": [state[0]]}) == "Line"


def test_double_precision_stays_where_jax_has_single(tmp_path):
    path = save(tmp_path, tree={"key": jr.key(0), "wide": jnp.arange(3.0), "narrow": jnp.ones(2, jnp.float32)})
    with jax.enable_x64(False):
        again = load(path)
    assert (type(again["wide"]), again["wide"].dtype) == (np.ndarray, np.float64)
    assert isinstance(again["narrow"], jax.Array)


def test_every_changed_byte_and_every_cut_is_seen(tmp_path):
    path = save(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        for content in (whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :], whole[:place]):
            path.write_bytes(content)
            with pytest.raises(archive.DamagedFileError, match="truncated or altered"):
                load(path)


def test_what_was_put_into_a_file_or_written_over_it_is_seen_or_means_nothing(tmp_path):
    path = save(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        before, after = whole[:place], whole[place:]
        for content in (before + b"\0\xff" + after, before + whole, before[::-1] + after, after):
            path.write_bytes(content)
            try:
                assert_same(load(path), TREE)  # ZIP allows something before its first file
            except archive.DamagedFileError:
                continue


def test_what_a_file_cannot_hold_is_refused_and_nothing_is_left_behind(tmp_path):
    with pytest.raises(ValueError, match="cannot hold an array of object"):
        archive.write(tmp_path / "a.npz", {}, {"a": np.array([None])})
    assert not os.listdir(tmp_path)


def test_a_file_that_names_other_code_is_refused(tmp_path):
    for name in ("os:system", "steinkern.core.archive:remove_checkpoints"):
        with pytest.raises(archive.DamagedFileError, match="is not a record of this package"):
            archive.unpack({"record": name, "fields": {"directory": "."}}, {})


# Checkpoints.


def test_two_checkpoints_stay_and_what_a_kill_left_behind_is_cleared(tmp_path):
    (tmp_path / "step-000000000009.npz.0123.partial").write_bytes(b"half")
    for step in (8, 9, 10):
        save(tmp_path, step)
    assert sorted(os.listdir(tmp_path)) == ["step-000000000009.npz", "step-000000000010.npz"]


def test_damaged_checkpoints_are_passed_over_with_a_warning_and_do_not_count(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, {"key": jr.key(0), "step": step})
    (tmp_path / "step-000000000003.npz").write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning, match=r"step-000000000003.npz is truncated or altered.*before it is used"):
        meta, arrays = archive.newest_checkpoint(tmp_path, rename=True)
    assert archive.unpack(meta["tree"], arrays)["step"] == 2
    save(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == [f"step-00000000000{end}" for end in ("2.npz", "3.npz", "3.npz.damaged")]
    archive.remove_checkpoints(tmp_path)
    assert not tmp_path.exists()


def test_files_of_others_stay_where_checkpoints_are_removed(tmp_path):
    save(tmp_path)
    (tmp_path / "thesis.txt").write_text("mine")
    archive.remove_checkpoints(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_directory_is_locked_until_the_lock_is_released(tmp_path):
    lock = archive.lock_directory(tmp_path / "run", "`--out`")
    with pytest.raises(OSError, match=r"`--out` .*run is in use"):
        archive.lock_directory(tmp_path / "run", "`--out`")
    lock.release()
    archive.lock_directory(tmp_path / "run", "`--out`").release()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"`--out` .*file cannot be written to: File exists"):
        archive.lock_directory(tmp_path / "file", "`--out`")
