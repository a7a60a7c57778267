"""A self-contained HTML page for a run: its settings, its end, its traces, its particles and a table of sites.

`Result.report` writes it for a run in memory, `steinkern report` for one on disk.
"""

from .record import Frames as Frames
from .record import Record as Record
from .record import Trace as Trace
from .saved import read_run as read_run
from .write import write_report as write_report
