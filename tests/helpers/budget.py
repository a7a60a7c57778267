"""The budget of the default tests: what each costs in processor time, the ten dearest, and a limit for one test.

Processor seconds, those of child processes included, and not those of a clock: a busy machine changes them little. A
slow one changes them all alike, so a test is judged by its share of the whole run.
"""

import time

import pytest

try:
    import resource
except ImportError:  # Windows, which does not count what children took
    resource = None

MOST_SECONDS, MOST_SHARE = 5.0, 0.02
"""A test over its budget takes more than both, in processor seconds and of the whole run.

The share scales with the machine; the seconds are for runs with a warm compilation cache, in which all tests are cheap.
"""
LEAST_TESTS = 1000
"""A run of fewer tests is a selection, of which one test may well be a large share."""


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    if resource is None:
        return time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Budget:
    """Counts the cost of every test where it runs, and reports where the run is summed up."""

    def __init__(self, enforced: bool) -> None:
        self.enforced = enforced
        self.costs: dict[str, float] = {}
        self.excused: set[str] = set()
        self._last = processor_seconds()

    def pytest_runtest_logstart(self):
        """Leave out what happened before the test: importing and collecting all of them, for the first."""
        self._last = processor_seconds()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Attach the cost since the last report: fixtures, the test and what is taken down."""
        outcome = yield
        now = processor_seconds()
        properties = outcome.get_result().user_properties
        properties.append(("processor seconds", now - self._last))
        slow = item.get_closest_marker("slow")
        if slow and slow.kwargs.get("reason"):
            properties.append(("slow", True))
        self._last = now

    def pytest_runtest_logreport(self, report):
        """Collect costs; with xdist the reports come from other processes."""
        found = dict(report.user_properties)
        self.costs[report.nodeid] = self.costs.get(report.nodeid, 0.0) + found.get("processor seconds", 0.0)
        if "slow" in found:
            self.excused.add(report.nodeid)

    def over(self) -> list[str]:
        """Tests that take more than their share of a whole run, and give no reason by the marker `slow`."""
        if not self.enforced or len(self.costs) < LEAST_TESTS:
            return []
        limit = max(MOST_SECONDS, MOST_SHARE * sum(self.costs.values()))
        return [test for test, cost in self.costs.items() if cost > limit and test not in self.excused]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_sessionfinish(self, session):
        """A run with a test over its budget fails."""
        if not hasattr(session.config, "workerinput") and self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield

    def pytest_terminal_summary(self, terminalreporter):
        """Print the ten dearest tests and the total."""
        total = sum(self.costs.values())
        if not total:
            return
        terminalreporter.section("processor time")
        for test, cost in sorted(self.costs.items(), key=lambda pair: -pair[1])[:10]:
            terminalreporter.line(f"{cost:7.1f} s  {test}")
        terminalreporter.line(f"{total:7.1f} s  in all, of {len(self.costs)} tests")
        for test in self.over():
            terminalreporter.line(
                f"OVER BUDGET: {test} takes more than {MOST_SECONDS:.0f} s and {MOST_SHARE:.0%} of the run. Make it "
                "cheaper, mark it `thorough`, or mark it `slow` with the reason why it must be in the default set.",
                red=True,
            )
