"""Times of the image study: every method alone on the device, the seconds of five runs of ten epochs.

    python -m benchmarks.images [--networks mlp lenet] [--data DIRECTORY] [--out times.json]

Runs of the study may share a device with others; their seconds then say little. Here a group of runs, as the study has
it, takes a tenth of an epoch and four tenths in turn; a step is the difference over the difference in steps, of the
best rounds. `steinkern reproduce images --times FILE` reads the file.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from steinkern.core.compilation_cache import switch_on_by_environment
from steinkern.experiments.images.networks import NETWORKS
from steinkern.experiments.images.runs import EPOCHS, SEEDS, Task, run_group, runs_at_once
from steinkern.experiments.images.study import ImageStudy, settings_of

STUDY = ImageStudy()
PARTS = (0.1, 0.4)


def group(method: str, task: Task, epochs: float) -> float:
    """The seconds of a group of runs with the middle setting."""
    count = runs_at_once(method, task.network)
    shorter = replace(task, epochs={method: epochs})  # type: ignore[dict-item]  # a part of an epoch
    return run_group(method, [settings_of(method)[0]] * count, range(count), shorter)[1]


def measured(method: str, task: Task, rounds: int) -> dict[str, float]:
    """The seconds of a step of one group, and of all runs of the study."""
    found = [[group(method, task, epochs) for epochs in PARTS] for _ in range(rounds)]
    short, long = (min(own) for own in zip(*found, strict=True))
    few, many = (replace(task, epochs={method: part}).steps_of(method) for part in PARTS)  # type: ignore[dict-item]
    step = (long - short) / (many - few)
    rest = max(0.0, short - few * step)
    whole = replace(task, epochs=EPOCHS).steps_of(method)
    return {"step": step, "rest": rest, "all": SEEDS // runs_at_once(method, task.network) * (whole * step + rest)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--methods", nargs="+", choices=STUDY.methods, default=STUDY.methods)
    parser.add_argument("--data", type=Path, help="the data directory, as of steinkern reproduce")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8, help="programs compiled at the same time, before the times")
    parser.add_argument("--out", type=Path, default=Path("times.json"))
    options = parser.parse_args()
    switch_on_by_environment(default=True)
    tasks: dict[str, Any] = dict(STUDY.tasks(data=options.data, cases=tuple(options.networks)))
    pairs = [(network, method) for method in reversed(options.methods) for network in tasks]
    begin = time.perf_counter()

    def warm(pair: tuple[str, str]) -> None:
        group(pair[1], tasks[pair[0]], 0.01)
        print(f"{time.perf_counter() - begin:6.1f} s  {' '.join(pair)} compiled", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(warm, pairs))
    times: dict[str, dict[str, float]] = {}
    for network, task in tasks.items():
        for method in options.methods:
            found = measured(method, task, options.rounds)
            times.setdefault(network, {})[method] = round(found["all"], 3)
            runs = runs_at_once(method, network)
            told = f"{1e3 * found['step']:.2f} ms a step of {runs} runs, {found['all']:.1f} s in all"
            print(f"{time.perf_counter() - begin:6.1f} s  {network} {method}: {told}", flush=True)
            options.out.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
