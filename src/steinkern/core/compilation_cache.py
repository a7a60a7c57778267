"""Switches on JAX's persistent compilation cache, with a directory and limits that suit many small programs."""

import contextlib
import hashlib
import os
import platform
import stat
import warnings
import zlib
from importlib.metadata import version
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from .files import check_writable
from .types import warn_caller

SWITCH = "STEINKERN_CACHE"
"""The environment variable that switches the cache on (1), off (0), or on in a directory (a path)."""
_ENTRIES = "*-cache"
_CHECKED = ".checked"  # entries older than this file are known to be whole
_MOST_BYTES = 2**30  # of all entries in a directory; the oldest are removed first
_ZSTD = b"\x28\xb5\x2f\xfd"
_NOISE = "Error (reading|writing) persistent compilation cache entry"


def compilation_cache(directory: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs on disk, so that another process with the same code starts at once.

    ```python
    import steinkern as sk
    sk.compilation_cache()          # once, at the top of a script or notebook
    ```

    This configures JAX's persistent cache for the whole process and for programs of any size, those of other code
    included. Setting the environment variable `STEINKERN_CACHE=1` does the same at the first use of a name of
    `steinkern`, or at its import where JAX has been imported before. A directory already set by
    `jax_compilation_cache_dir` stays, unless another one is given here.

    Compiled programs are native code, so the directory is private to the user (mode 0700); one that other users own
    or can write to is refused. Below it, each version of JAX and set of processor features has its own directory.
    Truncated entries are removed when the cache is switched on. Where the directory cannot be used, a warning says why,
    and programs are compiled without a cache.

    Args:
        directory: by default `steinkern` in the user's cache directory (`$XDG_CACHE_HOME`, or `~/.cache`).

    Returns:
        The directory in use, or `None` where there is none.
    """
    place, problem = _switch_on(directory)
    if problem:
        warn_caller(RuntimeWarning(f"the compilation cache is off: {place} {problem}."))
        return None
    return place


def switch_on_by_environment(default: bool = False) -> None:
    """Configure the cache by the variable `STEINKERN_CACHE`; where it is not set, switch the cache on if `default`."""
    value = os.environ.get(SWITCH, "").strip()
    if value.lower() in ("0", "no", "off", "false"):
        return
    if value.lower() in ("1", "yes", "on", "true"):
        compilation_cache()
    elif value:
        compilation_cache(value)
    elif default:
        _switch_on(None)  # the user did not ask for the cache, so a failure gives no warning


def _switch_on(directory: str | os.PathLike[str] | None) -> tuple[Path, str]:
    """The directory, and the reason why it cannot be used (empty where it can)."""
    given = getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 (its type does not list it)
    if directory is None and given:
        place = Path(given)
    else:
        root = _default_root() if directory is None else Path(directory).expanduser()
        place = root / _machine_key()
        problem = _prepare(root) or _prepare(place)
        if problem:
            return place, problem
        _remove_broken(place)
        _remove_oldest(place)
    wanted = {
        "jax_compilation_cache_dir": str(place),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    if any(getattr(jax.config, name) != value for name, value in wanted.items()):
        for name, value in wanted.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()  # JAX reads its settings once, at the first compilation
        warnings.filterwarnings("ignore", message=_NOISE)  # without an entry JAX compiles the program
    return place, ""


def _default_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "steinkern"


def _machine_key() -> str:
    """A directory name from JAX's versions and the processor's features: compiled code may not run on others."""
    features = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        features = "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    parts = (platform.machine(), platform.system(), version("jax"), version("jaxlib"), features)
    return f"jax-{version('jax')}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}"


def _prepare(directory: Path) -> str:
    """Create a directory private to this user; returns the reason why it cannot be used, or an empty string."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        if hasattr(os, "getuid") and found.st_uid != os.getuid():
            return "belongs to another user"
        if os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077:
            if stat.S_IMODE(found.st_mode) & 0o022:
                return "can be written to by other users (give it the mode 0700)"
            directory.chmod(0o700)
        check_writable(directory)
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    return ""


def _remove_broken(directory: Path) -> None:
    """Remove truncated entries, left by killed processes: those newer than the last check that do not decompress."""
    stamp = directory / _CHECKED
    with contextlib.suppress(OSError):
        last = stamp.stat().st_mtime if stamp.exists() else 0.0
        stamp.touch()
        for entry in directory.glob(_ENTRIES):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime >= last - 1 and not _is_whole(entry):
                    entry.unlink()


def _is_whole(entry: Path) -> bool:
    content = entry.read_bytes()
    if content.startswith(_ZSTD):  # written by the package zstandard, which checks its frames on reading
        return True
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    return True


def _remove_oldest(directory: Path) -> None:
    """Remove the oldest entries until the rest takes at most `_MOST_BYTES`."""
    with contextlib.suppress(OSError):
        entries = [(entry, entry.stat()) for entry in directory.glob(_ENTRIES)]
        total = 0
        for entry, found in sorted(entries, key=lambda item: item[1].st_mtime, reverse=True):
            total += found.st_size
            if total > _MOST_BYTES:
                entry.unlink(missing_ok=True)
