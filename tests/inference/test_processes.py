"""Two processes on this machine that run one fit, and what becomes of it when one of them is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from steinkern import distributed
from tests import two_processes

ROOT = Path(__file__).parents[2]


PATIENCE = 600  # seconds: an end to a hang, not a measure of speed


class Ended(NamedTuple):
    """How the two processes ended."""

    codes: list[int]
    said: list[str]
    errors: list[str]
    directory: Path

    def found(self, process: int = 0) -> dict:
        """What a process found before."""
        return json.loads(next(line for line in self.said[process].splitlines() if line.startswith("{")))

    @property
    def aborted(self) -> bool:
        """Whether JAX's runtime aborted (in gloo, under load) or did not start (the port was taken in the meantime).

        Process 1 should live until it kills itself.
        """
        not_started = any("JAX could not start process" in text for text in self.errors)
        return self.codes[1] != -signal.SIGKILL and (-signal.SIGABRT in self.codes or not_started)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_both(directory: Path) -> Ended:
    # Programs that run for ten steps need no optimising; it is most of the time otherwise.
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    flags += " --xla_llvm_disable_expensive_passes=true"
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    script = "import pathlib, sys; from tests.two_processes import main; "
    script += "main(int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))"
    files = [[(directory / f"{kind}{process}").open("w") for process in (0, 1)] for kind in ("out", "error")]
    port = free_port()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(process), str(port), directory],
            env=environment, stdout=files[0][process], stderr=files[1][process],
        )
        for process in (0, 1)
    ]  # fmt: skip
    try:
        codes = [workers[process].wait(timeout=PATIENCE) for process in (1, 0)][::-1]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for file in (*files[0], *files[1]):
            file.close()
    said, errors = ([(directory / f"{kind}{process}").read_text() for process in (0, 1)] for kind in ("out", "error"))
    return Ended(codes, said, errors, directory)


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Ended:
    for _ in range(3):  # another port each time: one that was free may be taken by the time it is used
        both = run_both(tmp_path_factory.mktemp("processes"))
        if not both.aborted:
            return both
    pytest.fail(f"JAX's runtime aborted or did not start three times, each at another port:\n{both.errors[0][-2000:]}")


@pytest.fixture(scope="module")
def alone():
    return two_processes.fit()


def relative(found, truth) -> float:
    return float(np.max(np.abs(np.asarray(found) - np.asarray(truth))) / np.max(np.abs(truth)))


@pytest.mark.thorough
def test_velocity_and_fit_of_two_processes_are_those_of_one(ended, alone):
    found = ended.found()
    assert relative(found["velocity"], two_processes.velocity()) < 1e-12
    assert relative(found["fit"], alone.points) < 1e-9  # ten steps of Adagrad magnify the rounding
    assert relative(found["longer fit"], two_processes.fit(2, alone).points) < 1e-9


@pytest.mark.thorough
def test_every_process_has_the_whole_result(ended, alone):
    found = ended.found()
    assert relative(found["recorded"], alone.history.particles) < 1e-9
    assert "32 particles, 10 steps, finished" in found["summary"]
    other = ended.found(1)
    assert {name: other[name] for name in other if name != "refusals"} == {
        name: found[name] for name in found if name != "refusals"
    }


@pytest.mark.thorough
def test_what_differs_between_processes_is_refused(ended):
    particles, directory = ended.found()["refusals"]
    assert particles.startswith("`particles` must be the same in every process")
    assert directory.startswith("`checkpoint` must be a directory that all processes see")


@pytest.mark.thorough
def test_the_loss_of_a_process_ends_the_others_with_a_clear_error(ended):
    assert ended.codes[1] == -signal.SIGKILL
    assert ended.codes[0] != 0
    assert "the run went on" not in ended.said[0]
    # Which of the two comes first is a race: our error from the collective that broke, or JAX's own word.
    ours = "process 0 of 2 cannot go on: another process of the run has most likely ended"
    theirs = "This most likely indicates that another task died"
    assert ours in ended.errors[0] or theirs in ended.errors[0]


@pytest.mark.thorough
def test_a_run_that_lost_a_process_goes_on_from_its_checkpoint(ended, alone):
    # Here in one process without a mesh: what is computed does not depend on who computes it, but for rounding.
    files = sorted(path.name for path in (ended.directory / "killed").glob("*.ckpt"))
    assert files[-1] == f"step-{two_processes.KILLED_AT - 2:012d}.ckpt"
    with pytest.warns(RuntimeWarning, match=r"'devices': 4}, this is .*'devices': 1}: the run goes on"):
        resumed = two_processes.fit(checkpoint=ended.directory / "killed", every=2)
    assert len(resumed.history.step) == two_processes.STEPS
    assert relative(resumed.points, alone.points) < 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinator_address": "here:1"}, r"`num_processes` must be given where `coordinator_address` is\."),
        ({"num_processes": 2, "process_id": 0}, r"`coordinator_address` must be given where .* are\."),
        ({"coordinator_address": "here", "num_processes": 2, "process_id": 0}, 'must be "host:port" of process 0'),
        ({"coordinator_address": "here:1", "num_processes": 2, "process_id": 2}, "`process_id` must be below"),
        ({"coordinator_address": "here:1", "num_processes": 0, "process_id": 0}, "`num_processes` must be a whole"),
        ({"heartbeat_timeout": 0}, "`heartbeat_timeout` must be a whole number of at least 1, got 0"),
    ],
)
def test_arguments_of_initialize_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        distributed.initialize(**arguments)


def test_a_process_0_that_is_not_there_is_waited_for_and_missed():
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=rf"no process answered at `coordinator_address` {address} within 1 s"):
            distributed.initialize(address, 2, 1, initialization_timeout=1)
