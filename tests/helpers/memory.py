"""How much memory this process holds."""

import os
import sys
from pathlib import Path

import pytest


def resident_bytes() -> int:
    """Resident memory now; where the system does not tell, the largest there ever was."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    resource = pytest.importorskip("resource", reason="this system does not tell")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
