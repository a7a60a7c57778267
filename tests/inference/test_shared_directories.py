"""Checkpoints in directories to which others write: no link is followed, no file of others lost, one run at a time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core import checkpoint, checkpoint_file, files
from steinkern.core.checkpoint import CheckpointDirectory, newest, remove_run
from steinkern.core.checkpoint_file import CheckpointContents, DamagedCheckpoint, read, write

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and locks of POSIX")
NAME = "step-{:012d}.ckpt".format


def log_density(x):
    return -0.5 * (x**2).sum()


def fit(directory, num_steps=4, **options):
    start = np.random.default_rng(0).normal(size=(4, 2))
    return sk.fit(jr.key(0), log_density, sk.svgd(), start, num_steps=num_steps, checkpoint=directory, **options)


# Writing.


@posix
def test_no_link_in_the_directory_is_followed_or_removed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    directory = tmp_path / "run"
    directory.mkdir()
    names = [".writable", "step-000000000001.partial", "run.json", "page.html"]
    for name in names:
        (directory / name).symlink_to(victim)
    (directory / NAME(1)).symlink_to(victim)
    files.prepare_directory(directory)
    files.write_text(directory / "page.html", "new")
    CheckpointDirectory(directory, {}).save(1, [np.zeros(2)], {})
    assert victim.read_text() == "mine"
    assert (directory / ".writable").is_symlink()
    assert not (directory / NAME(1)).is_symlink()
    assert newest(directory).step == 1


@posix
def test_temporary_files_are_new_and_their_names_cannot_be_foreseen(tmp_path, monkeypatch):
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *mode: opened.append((path, flags)) or real(path, flags, *mode))
    for _ in range(2):
        with files.replacing(tmp_path / "a.txt") as file:
            file.write(b"x")
    opened = [(path, flags) for path, flags in opened if flags & os.O_CREAT]  # the directory is synced too
    assert len({path for path, _ in opened}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in opened)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_directory_in_the_place_of_a_checkpoint_costs_no_run(tmp_path):
    for step in (1, 2, 3):
        (tmp_path / NAME(step)).mkdir()
        (tmp_path / NAME(step) / "mine").write_text("")
    store = CheckpointDirectory(tmp_path, {})
    for step in (4, 5, 6, 7):
        store.save(step, [], {})
    assert all((tmp_path / NAME(step) / "mine").exists() for step in (1, 2, 3))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [NAME(6), NAME(7)]
    (tmp_path / NAME(8)).mkdir()
    with pytest.raises(sk.CheckpointError, match=r"step 8 could not be written .*"):
        store.save(8, [], {})
    with pytest.warns(RuntimeWarning, match="Is a directory"):
        assert store.latest().step == 7
    assert (tmp_path / f"{NAME(8)}.damaged").is_dir()


def test_a_run_that_meets_a_full_disk_carries_its_result(tmp_path, monkeypatch):
    def full(path, saved):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(sk.CheckpointError, match=r"could not be written .* No space left") as caught:
        fit(tmp_path, every=3)
    result = caught.value.result
    assert (result.num_steps, result.status) == (3, sk.Status.STOPPED)
    assert np.isfinite(result.points).all()
    assert "could not be written ended the run after 3 steps" in result.message


# Locks.


@posix
def test_two_runs_do_not_share_a_directory(tmp_path):
    said = []

    def again(step, state, info):
        if step == 1:
            try:
                fit(tmp_path)
            except OSError as error:
                said.append(str(error))

    fit(tmp_path, callback=again)
    assert "is in use: another run writes its checkpoints there" in said[0]
    assert fit(tmp_path, 5).num_steps == 5  # it is free again
    for num_steps in (2, 6):  # after a refusal too
        if num_steps == 2:
            with pytest.raises(ValueError, match="`num_steps` must be at least 5"):
                fit(tmp_path, num_steps)
        else:
            assert fit(tmp_path, num_steps).num_steps == 6


HOLDER = """
import importlib.util, os, signal, sys, time
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
lock = files.DirectoryLock(files.Path(sys.argv[2]))
assert lock.acquire()
if os.fork() == 0:  # outlives its parent
    os.write(1, b"child\\n")  # in one piece: two processes write to one pipe
    time.sleep(3600)
    os._exit(0)
os.write(1, b"held\\n")
time.sleep(3600)
"""


@posix
def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    command = [sys.executable, "-c", HOLDER, files.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert {process.stdout.readline(), process.stdout.readline()} == {b"held\n", b"child\n"}
            lock = files.DirectoryLock(tmp_path)
            assert not lock.acquire()
            process.kill()
            process.wait()
            assert lock.acquire()  # though the child of the killed process still runs
            lock.release()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@posix
def test_where_directories_cannot_be_locked_a_file_in_them_is_and_where_nothing_can_runs_go_on(tmp_path, monkeypatch):
    real = files.fcntl.flock

    def only_files(handle, operation):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(9, "Bad file descriptor")
        real(handle, operation)

    monkeypatch.setattr(files.fcntl, "flock", only_files)
    if os.path.isdir("/proc/self/fd"):
        with files.DirectoryLock(tmp_path) as first, files.DirectoryLock(tmp_path) as second:
            assert first.acquire()
            assert not second.acquire()
        assert (tmp_path / ".lock").exists()
    monkeypatch.setattr(files, "fcntl", None)
    with files.DirectoryLock(tmp_path) as first, files.DirectoryLock(tmp_path) as second:
        assert first.acquire() and second.acquire()  # noqa: PT018


# Reading.


@posix
def test_a_pipe_a_device_and_a_loop_of_links_are_no_checkpoints(tmp_path):
    os.mkfifo(tmp_path / NAME(1))
    (tmp_path / NAME(2)).symlink_to("/dev/zero")
    (tmp_path / NAME(3)).symlink_to(NAME(3))
    for step in (1, 2, 3):
        with pytest.raises(DamagedCheckpoint, match="cannot be read"):
            read(tmp_path / NAME(step))
    with pytest.warns(RuntimeWarning):
        assert newest(tmp_path) is None


def test_a_sparse_file_of_many_terabytes_is_refused_before_it_is_read(tmp_path):
    path, size = tmp_path / NAME(1), 2**43
    content = {"step": 1, "settings": {}, "notes": {}, "arrays": [["uint8", [size]]]}
    header = json.dumps(content).encode()
    path.write_bytes(checkpoint_file.FORMAT + len(header).to_bytes(8, "little") + header)
    try:
        os.truncate(path, path.stat().st_size + size + 32)
    except OSError:
        pytest.skip("the file system has no files of that size")
    with pytest.raises(DamagedCheckpoint, match=r"more than the .* for which there is memory"):
        read(path)


# Removing.


def test_only_what_is_ours_by_name_and_content_is_removed(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for step in (1, 2):
        write(directory / NAME(step), CheckpointContents(step, {}, {}, []))
    write(directory / f"{NAME(3)}.damaged", CheckpointContents(3, {}, {}, []))
    (directory / "step-000000000004.0123456789abcdef.partial").write_bytes(b"steinkern check")
    foreign = {"notes.txt": "", "step-5.ckpt": "PK of another library", "step-x.ckpt": "", "step-6.partial": "text",
               "best.ckpt": "steinkern checkpoint 1\n"}  # fmt: skip
    for name, text in foreign.items():
        (directory / name).write_text(text)
    (directory / NAME(7)).mkdir()
    remove_run(directory)
    assert {path.name for path in directory.iterdir()} == {*foreign, NAME(7)}
    remove_run(tmp_path / "nowhere")


def test_a_directory_in_use_is_not_cleared(tmp_path):
    write(tmp_path / NAME(1), CheckpointContents(1, {}, {}, []))
    with files.DirectoryLock(tmp_path) as lock:
        lock.acquire()
        with pytest.raises(OSError, match="is in use"):
            remove_run(tmp_path)
    remove_run(tmp_path)
    assert not Path(tmp_path).exists()
