"""Where a compiled program spends its time: JAX's profiler, read by the names that the library gives its parts.

The library marks its parts with `jax.named_scope`. XLA keeps these names with its instructions, in the text of a
compiled program; the profiler tells how long each instruction ran. Joined, they say how long a part took. XLA must be
told to write the texts before it starts, so this is for a process of its own, begun with `dumping(directory)` in its
environment.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) .*\{$")
PATH = re.compile(r'op_name="([^"]*)"')
CALLS = re.compile(r"calls=%?([\w.-]+)")
CONTROL = re.compile(r" (?:while|conditional|call)\(")


def dumping(directory: str, program: str) -> dict[str, str]:
    """The environment of a process in which XLA writes the text of `program`, and names every kernel it runs.

    On a GPU that takes launching kernels one by one: recorded into a CUDA graph they lose their names.
    """
    flags = f"--xla_dump_to={directory} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=^jit_{program}$"
    graphs = "--xla_gpu_enable_command_buffer="
    return {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags} {graphs}".strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the process that begins it may hold most of the GPU's memory
    }


def seconds_by_part(run: Callable[[], Any], program: str, parts: Iterable[str], directory: Path) -> dict[str, float]:
    """Seconds that the instructions of `program` ran while `run()` did, by part; "other" is what carries no name.

    Loops and branches are left out: what they contain is counted itself. Instructions that ran at the same time on
    several threads count once each.
    """
    parts = tuple(parts)
    spent = instruction_seconds(run, f"jit_{program}")
    found: Counter[str] = Counter()
    texts = sorted(directory.glob(f"*jit_{program}*after_optimizations.txt"))
    if not texts:
        raise FileNotFoundError(f"XLA wrote no text of jit_{program} into {directory}: see `dumping`.")
    names = {path.name.split(".")[0].removeprefix("module_").lstrip("0"): path for path in texts}
    for module, seconds in spent.items():
        owner = owners(names.get(module, texts[-1]).read_text(), parts)
        for instruction, own in seconds.items():
            part = owner.get(instruction, "other")
            if part is not None:
                found[part] += own
    return {part: found[part] for part in (*parts, "other")}


def owners(text: str, parts: tuple[str, ...]) -> dict[str, str | None]:
    """For every instruction of a compiled program the part it belongs to; `None` for a loop or a branch.

    The outermost name counts. A fusion that has lost its own takes the one most frequent in what it fuses.
    """
    scope = re.compile(rf"(?:^|[/(])({'|'.join(parts)})(?=[/)]|$)")

    def part_of(rest: str) -> str:
        path = PATH.search(rest)
        named = scope.search(path.group(1)) if path else None
        return named.group(1) if named else "other"

    inside: dict[str, Counter[str]] = {}
    found: dict[str, str | None] = {}
    fusions: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if begun := COMPUTATION.match(line):
            current = begun["name"]
        elif told := INSTRUCTION.match(line):
            name, rest = told["name"], told["rest"]
            found[name] = None if CONTROL.search(rest) else part_of(rest)
            if found[name] not in (None, "other"):
                inside.setdefault(current, Counter())[found[name]] += 1
            elif (called := CALLS.search(rest)) and found[name] is not None:
                fusions[name] = called[1]
    for name, computation in fusions.items():
        if computation in inside:
            found[name] = inside[computation].most_common(1)[0][0]
    return found


def instruction_seconds(run: Callable[[], Any], module: str) -> dict[str, Counter[str]]:
    """Seconds of every instruction of a module, by the number of the program it belongs to."""
    import jax

    with TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            jax.block_until_ready(run())
        (path,) = Path(directory).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(path))
        spent: dict[str, Counter[str]] = {}
        for plane in profile.planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if stats.get("hlo_module") == module and "hlo_op" in stats:
                        own = spent.setdefault(str(stats.get("program_id")), Counter())
                        own[str(stats["hlo_op"])] += event.duration_ns / 1e9
    return spent
