"""Systems without POSIX: locks, memory and renames by the means of Windows, simulated here."""

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from steinkern.core import files


class WindowsLocks:
    """`msvcrt.locking` in one process: a lock on a file ends when its handle is closed."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.holders: dict[int, int] = {}

    def locking(self, handle: int, mode: int, size: int) -> None:
        number = os.fstat(handle).st_ino
        holder = self.holders.get(number)
        if holder not in (None, handle) and is_open(holder):  # a closed handle's number may be given again
            raise OSError(errno.EACCES, "Permission denied")
        self.holders[number] = handle


def is_open(handle: int) -> bool:
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def test_a_directory_is_locked_by_a_file_in_it_where_there_is_no_flock(tmp_path, monkeypatch):
    real = os.open

    def opens_no_directory(path, flags, *mode):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "msvcrt", WindowsLocks())
    monkeypatch.setattr(os, "open", opens_no_directory)
    first, second = files.DirectoryLock(tmp_path), files.DirectoryLock(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("readers", [2, 9])
def test_a_file_that_a_reader_has_open_is_replaced_when_it_is_closed(readers, tmp_path, monkeypatch):
    real, tried = os.replace, []

    def replace(place, path):
        tried.append(path)
        if len(tried) <= readers:
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        real(place, path)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(files, "_ATTEMPTS", 5)
    monkeypatch.setattr(files, "_PAUSE", 0.0)
    if readers < 5:
        files.write_text(tmp_path / "a.txt", "new")
        assert (tmp_path / "a.txt").read_text() == "new"
    else:
        with pytest.raises(PermissionError):
            files.write_text(tmp_path / "a.txt", "new")
        assert not list(tmp_path.iterdir())
        assert len(tried) == 5


@pytest.mark.parametrize("reported", [True, False])
def test_memory_is_that_which_the_system_reports(reported, monkeypatch):
    def status(pointer):
        pointer._obj.bytes[0] = 2**34
        return int(reported and pointer._obj.size == 64)  # the size of MEMORYSTATUSEX

    kernel = SimpleNamespace(kernel32=SimpleNamespace(GlobalMemoryStatusEx=status))
    monkeypatch.setattr(ctypes, "windll", kernel, raising=False)
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert files.machine_memory() == (2**34 if reported else float("inf"))
    monkeypatch.delattr(ctypes, "windll")
    assert files.machine_memory() == float("inf")


WITHOUT_POSIX = """
import os, sys
import jax, numpy as np, optax, equinox
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "getuid", "geteuid", "getloadavg", "sysconf", "register_at_fork", "mkfifo", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
import steinkern as sk
for name in dir(sk):
    getattr(sk, name)
sk.compilation_cache(sys.argv[1] + "/cache")
start = np.random.default_rng(0).normal(size=(6, 2)).astype("float32")
run = sys.argv[1] + "/run"
result = sk.fit(jax.random.key(0), lambda x: -(x**2).sum(), sk.svgd(), start, num_steps=4, checkpoint=run)
result.save(sys.argv[1] + "/a.result")
assert (np.asarray(sk.load(sys.argv[1] + "/a.result").particles) == np.asarray(result.particles)).all()
from steinkern.cli import app
print(result.status.value)
"""


@pytest.mark.thorough
def test_the_library_works_without_the_modules_and_functions_of_posix(tmp_path):
    command = [sys.executable, "-W", "error::ImportWarning", "-c", WITHOUT_POSIX, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.stdout.strip() == "finished", ran.stderr
