"""Strict numerics for every test: double precision, no implicit promotion of types or ranks, seeds from test names."""

import os
import signal
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import jax
import jax.random as jr
import jaxtyping
import numpy as np
import pytest

import tests.helpers.checker  # noqa: F401  (`--jaxtyping-packages` finds it as an attribute)
from tests.helpers.budget import Budget

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiling is most of the time of the tests, and many compile the same programs: in other modules and runs.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


# Switches with which XLA compiles faster: in 0.5 to 0.8 of the time, by version.
QUICK_XLA = (
    "--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_use_fusion_emitters=false",
)  # fmt: skip


def known_switches(switches):
    """Those that this version of XLA has: one that it does not know ends the process, and is named by it."""
    given = os.environ.get("XLA_FLAGS", "")
    for _ in range(2):
        environment = {**os.environ, "XLA_FLAGS": " ".join([*switches, given]), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", "import jax; jax.devices()"]
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return switches
        switches = [switch for switch in switches if switch not in tried.stderr]
    return []


def pytest_configure(config):
    checked = config.getoption("jaxtyping_packages", None)  # checks of shapes change what a test costs
    as_users_compile = checked or config.option.markexpr == "soak"
    if not as_users_compile and not hasattr(config, "workerinput"):  # workers have the environment of their parent
        switches = known_switches(list(QUICK_XLA))
        os.environ["XLA_FLAGS"] = " ".join([*switches, os.environ.get("XLA_FLAGS", "")])
    default = config.option.markexpr == "not soak and not thorough"
    config.pluginmanager.register(Budget(enforced=default and not checked), "budget")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items):
    """Leave every n-th case of a test with `@pytest.mark.every(n)` in the default set, and make the others thorough."""
    seen = Counter()
    for item in items:
        marker = item.get_closest_marker("every")
        if marker and not item.get_closest_marker("thorough"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.thorough)
            seen[test] += 1


def pytest_terminal_summary(terminalreporter):
    """Say loudly where the tests of the pages have not run."""
    skipped = terminalreporter.stats.get("skipped", [])
    without = [report for report in skipped if "needs a browser" in str(report.longrepr)]
    if without:
        terminalreporter.line(
            f"NOT RUN: {len(without)} tests of pages, for want of a browser (apt-get install chromium).", yellow=True
        )


@pytest.fixture
def key(request):
    """A PRNG key fixed by the test's name and parameters."""
    return jr.key(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def generator(key):
    """NumPy's generator, fixed in the same way."""
    return np.random.default_rng(np.asarray(jr.key_data(key)))


@pytest.fixture
def heard():
    """Python's own handler of Ctrl-C: a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def as_installed():
    """No run-time checks of types, as users run the library: for wrong types that the library itself must refuse."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def relaxed():
    """JAX's own promotion of types and ranks, as a user has it: for a user's file, and where NumPyro is called."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_module():
    """Drop compiled programs at the end of every module.

    Each holds mappings of memory, of which Linux gives a process 65,530: with those of all tests in one process the
    compiler ends in a segmentation fault.
    """
    yield
    jax.clear_caches()
