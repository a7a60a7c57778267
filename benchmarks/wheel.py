"""The wheel in a clean environment: build it by `python -m build`, install it, use it, and time its import.

`python benchmarks/wheel.py [--json PATH]` needs `build` and a package index. The wheel is made from the source
distribution, so that both are tried. It is installed without extras for the library, and with the extra `cli` for the
command. Nothing of this source tree is on the path of what runs; the time of `import steinkern`, with all of its names,
is beyond that of `import jax`, the best of five.
"""

import argparse
import os
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
SMOKE = """
import jax
import numpy as np
import steinkern as sk
assert "site-packages" in sk.__file__, sk.__file__
start = jax.random.normal(jax.random.key(1), (10, 2))
def log_density(x):
    return -0.5 * (x**2).sum()
fitted = sk.fit(jax.random.key(0), log_density, sk.svgd(), start, num_steps=10)
sampled = sk.sample(jax.random.key(0), log_density, start=np.zeros(2))
sampled.save("sampled.result")
again = sk.load("sampled.result", target=log_density)
assert (again.particles == sampled.particles).all()
assert again.report("page").stat().st_size > 10_000  # templates and scripts are in the wheel
print(fitted.status.value, sampled.status.value)
"""
DENSITY = "def log_density(x):\n    return -0.5 * (x**2).sum()\n"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"STEINKERN_CACHE": "0"}
WRITTEN = {"particles.npz", "sample.result", "index.html", "run.json"}


def built(place: Path) -> Path:
    """Build the source distribution and from it the wheel; the wheel."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", place, ROOT], check=True, stdout=subprocess.DEVNULL)
    (source,) = place.glob("steinkern-*.tar.gz")
    (wheel,) = place.glob("steinkern-*.whl")
    print(f"{source.name}, {source.stat().st_size / 1000:.0f} kB; {wheel.name}, {wheel.stat().st_size / 1000:.0f} kB")
    return wheel


def try_command(scripts: Path, place: Path) -> None:
    """Run the installed command on a density in a file."""
    command = scripts / "steinkern"
    subprocess.run([command, "--version"], check=True, cwd=place, env=ENVIRONMENT)
    (place / "density.py").write_text(DENSITY)
    line = [command, "sample", "density.py:log_density", "--dim", "2", "--out", "run"]
    subprocess.run(line, check=True, cwd=place, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    assert {path.name for path in (place / "run").iterdir()} >= WRITTEN


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        wheel = built(place)
        subprocess.run([sys.executable, "-m", "venv", place / "clean"], check=True)
        scripts = place / "clean" / ("Scripts" if os.name == "nt" else "bin")
        python = scripts / "python"

        def install(what: str) -> None:
            subprocess.run([python, "-m", "pip", "install", "--quiet", what], check=True)

        def said(code: str) -> str:
            line = [python, "-W", "error", "-c", code]
            run = subprocess.run(line, check=True, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE)
            return run.stdout.decode().strip()

        install(str(wheel))
        assert said(SMOKE) == "finished converged"
        seconds = min(float(said(IMPORT)) for _ in range(5))
        install(f"{wheel}[cli]")
        try_command(scripts, place)
    print(f"installs, fits, samples, saves, reports, and imports in {seconds:.2f} s beyond jax")
    if path:
        rows = [Row("wheel", "steinkern", "import_seconds", seconds, None, 5)]
        write_results(path, "wheel", environment(), rows)
    if seconds > 2:
        sys.exit("more than two seconds")


if __name__ == "__main__":
    main()
