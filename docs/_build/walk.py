"""Counts the files and functions of the package that one call runs through.

`python docs/_build/walk.py [SRC] [--files]`; SRC may be that of another version.
"""

import collections
import sys
import warnings
from pathlib import Path

SOURCE = Path(next((name for name in sys.argv[1:] if name != "--files"), "src")).resolve()
sys.path.insert(0, str(SOURCE))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import steinkern as sk  # noqa: E402


def calls():
    """The three calls, of a density that has not been compiled."""

    def log_density(x):
        return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)

    key, start, options = jax.random.key(0), jnp.ones(3), {"progress": False}
    particles = jax.random.normal(key, (20, 3))
    return {
        "fit": lambda: sk.fit(key, log_density, sk.svgd(), particles, num_steps=50, **options),
        "sample": lambda: sk.sample(key, log_density, start=start, **options),
        "fit(start=)": lambda: sk.fit(key, log_density, start=start, **options),
    }


def walk(call):
    """The functions of each file that run in a call, in the order of their first calls."""
    files = collections.defaultdict(dict)

    def listen(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{SOURCE}/steinkern") and not code.co_name.startswith("<"):
            files[str(Path(code.co_filename).relative_to(SOURCE / "steinkern"))][code.co_qualname] = None

    sys.setprofile(listen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def main():
    """Print the counts of three calls, and with `--files` the files with their functions."""
    warnings.simplefilter("ignore", sk.SteinWarning)
    for call in calls().values():  # modules that the first call of a process loads are not part of the walk
        call()
    for name, call in calls().items():
        files = walk(call)
        functions = sum(map(len, files.values()))
        inference = {file: found for file, found in files.items() if file.startswith("inference")}
        print(f"{name:12} {len(files):3} files, {functions:3} functions; in inference {len(inference):3} files, "
              f"{sum(map(len, inference.values())):3} functions")  # fmt: skip
        if "--files" in sys.argv:
            for file, found in files.items():
                print(f"    {file}: {', '.join(found)}")


if __name__ == "__main__":
    main()
