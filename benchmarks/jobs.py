"""Many small measurements at once: a process for each, with one thread on a core of its own."""

import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "PJRT_NPROC": "8",  # with one core, programs of many small factorisations can wait for each other forever
}
ON_A_GPU = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""The environment of processes that share a GPU."""


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def machine() -> str:
    """The processor and the number of cores that this process sees."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"


def in_processes(
    jobs: Mapping[str, Sequence[str]],
    workers: int,
    finish: Callable[[str], None],
    limit: float = float("inf"),
    expected: Mapping[str, float] | None = None,
    environment: Mapping[str, str] = ONE_THREAD,
) -> dict[str, str]:
    """Run `python -m` with the arguments of every job, some at once, in the order of the jobs.

    Args:
        jobs: arguments by name.
        workers: how many run at once.
        finish: called with the name of a job that has ended well, one at a time.
        limit: seconds after which running jobs are ended and no other begins.
        expected: seconds that a job may take; one that does not fit into what is left is not begun.
        environment: variables that are set for every job; by default those of one thread on a core of its own.

    Returns:
        The names of the jobs that failed or were ended, with the end of what they wrote to standard error.
    """
    end, failed, lock = time.monotonic() + limit, {}, threading.Lock()
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in jobs:
        waiting.put(name)
    available, pin = cores(), shutil.which("taskset")

    def work(core: int) -> None:
        prefix = [pin, "-c", str(core)] if pin and workers <= len(available) and environment is ONE_THREAD else []
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            left = end - time.monotonic()
            if left <= (expected or {}).get(name, 0.0):
                failed[name] = "not begun, for want of time"
                continue
            command = [*prefix, sys.executable, "-m", *jobs[name]]
            try:
                ended = subprocess.run(
                    command, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
                    timeout=None if left == float("inf") else left,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                failed[name] = "ended by the limit"
                continue
            if ended.returncode:
                failed[name] = ended.stderr.strip()[-800:]
                continue
            with lock:
                finish(name)

    threads = [threading.Thread(target=work, args=(available[k % len(available)],)) for k in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed
