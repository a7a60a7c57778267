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

import steinkern as sk
from tests.helpers import two_processes

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
    script = "import pathlib, sys; from tests.helpers.two_processes import main; "
    script += "main(int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))"
    files = [[(directory / f"{kind}{process}").open("w") for process in (0, 1)] for kind in ("out", "error")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
def test_two_processes_compute_what_one_does_and_each_has_the_whole_result(ended, alone):
    found = ended.found()
    assert relative(found["velocity"], two_processes.velocity()) < 1e-12
    assert relative(found["fit"], alone.points) < 1e-9  # ten steps of Adagrad magnify the rounding
    assert relative(found["longer fit"], two_processes.fit(2, alone).points) < 1e-9
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
    ours = "process 0 of 2 cannot continue: another process of the run has most likely ended"
    theirs = "This most likely indicates that another task died"
    assert ours in ended.errors[0] or theirs in ended.errors[0]


@pytest.mark.thorough
def test_a_run_that_lost_a_process_leaves_its_last_checkpoint(ended, alone):
    # On other devices its particles begin a new run: what is computed does not depend on who computes it, but for
    # rounding.
    saved, step = sk.load(ended.directory / "killed"), two_processes.KILLED_AT - 2
    assert saved.num_steps == step
    assert relative(saved.points, alone.history.particles[step - 1]) < 1e-9
    with pytest.raises(sk.CheckpointError, match=r"number of devices \(was 4, is 1\)"):
        two_processes.fit(checkpoint=ended.directory / "killed", checkpoint_every=2)
