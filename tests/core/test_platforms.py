"""A system without POSIX, as Windows is."""

import pytest

from tests.helpers.processes import output_of

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
    assert output_of("-W", "error::ImportWarning", "-c", WITHOUT_POSIX, tmp_path).strip() == "finished"
