"""The wheel in a clean environment: build it, install it without extras, import it, fit, and time the import.

`python benchmarks/wheel.py [--json PATH]` needs a package index. Nothing of this source tree is on the path of what is
timed; the time of `import steinkern`, with all of its names, is beyond that of `import jax`, the best of five.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from steinkern.core.files import environment
from steinkern.experiments.tables import Row, write_results

ROOT = Path(__file__).parent.parent
IMPORT = """
import time
import jax
start = time.perf_counter()
import steinkern
for name in dir(steinkern):
    getattr(steinkern, name)  # names are imported on first use
print(time.perf_counter() - start)
"""
FIT = """
import jax
import steinkern as sk
assert "site-packages" in sk.__file__, sk.__file__
start = jax.random.normal(jax.random.key(1), (10, 2))
print(sk.fit(jax.random.key(0), lambda x: -0.5 * (x**2).sum(), sk.svgd(), start, num_steps=10).status.value)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", place, ROOT], check=True)
        (wheel,) = place.glob("steinkern-*.whl")
        subprocess.run([sys.executable, "-m", "venv", place / "clean"], check=True)
        python = place / "clean" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)

        def said(code: str) -> str:
            run = subprocess.run([python, "-W", "error", "-c", code], check=True, cwd=place, stdout=subprocess.PIPE)
            return run.stdout.decode().strip()

        assert said(FIT) == "finished"
        seconds = min(float(said(IMPORT)) for _ in range(5))
        size = wheel.stat().st_size
    print(f"{wheel.name}, {size / 1000:.0f} kB: installs, fits, and imports in {seconds:.2f} s beyond jax")
    if path:
        rows = [Row("wheel", "steinkern", "import_seconds", seconds, None, 5)]
        write_results(path, "wheel", environment(), rows)
    if seconds > 2:
        sys.exit("more than two seconds")


if __name__ == "__main__":
    main()
