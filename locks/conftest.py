"""Options, devices and accounting of the locks.

`--device host|cuda|cuda:N|all`: where kernels run. Without a GPU every lock that needs one is reported as not run, by
name; a run in which nothing ran fails. `--tier quick|gpu|nightly` and `--shapes quick|full` choose how much.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from harness.cli.output import check_output
from harness.device import Device
from harness.devices import available, check_choice
from harness.record import check_records, circumstances, record
from harness.workers import pin_worker
from oracle.errors import LanelockError
from reports.lock_results import SENTENCE, LockResult, result_of, summary

NOT_RUN = "not run: "


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of every lock run."""
    group = parser.getgroup("lanelock")
    group.addoption("--device", default="host", help="host, cuda, cuda:N or all (default: host)")
    group.addoption("--tier", default="quick", choices=("quick", "gpu", "nightly"), help="how much to run")
    group.addoption("--results", metavar="FILE", help="write every lock's result as JSON")
    group.addoption("--record", action="store_true", help="write a record of this run under reports/records/")
    group.addoption("--shapes", default="quick", choices=("quick", "full"), help="small shapes, or the 27B's too")


def pytest_configure(config: pytest.Config) -> None:
    """Choose this worker's GPU before anything starts CUDA; open the devices once a process.

    Raises UsageError for a device that has no such name, and for results or a record that could not be written.
    """
    config.addinivalue_line("markers", "nightly: runs only with --tier nightly; reported as not run otherwise")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "full: runs only with --shapes full")
    config.addinivalue_line("markers", "verify: part of `lanelock verify`, the rooms' value and contract locks")
    try:
        check_choice(_choice(config))
        if (target := config.getoption("--results")) is not None:
            check_output(Path(target))
        if config.getoption("--record"):
            check_records()
    except LanelockError as unknown:
        raise pytest.UsageError(str(unknown)) from None
    pin_worker()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config), "lanelock-results")


class Results:
    """Collects every lock's result in the controlling process and writes them where asked."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rows: list[LockResult] = []
        self.start = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the row of each lock."""
        row = result_of(report)
        if row is not None:
            self.rows.append(row)

    def pytest_sessionfinish(self) -> None:
        """Write the JSON and the record that were asked for."""
        seconds = time.monotonic() - self.start
        if target := self.config.getoption("--results"):
            path = Path(str(target))
            temporary = path.with_name(path.name + ".partial")
            rows, now = [dataclasses.asdict(row) for row in self.rows], circumstances()
            tree = {name: now[name] for name in ("commit", "dirty")}
            temporary.write_text(json.dumps({**tree, "seconds": seconds, "locks": rows}, indent=1))
            temporary.replace(path)
        if self.config.getoption("--record"):
            options = {name: str(self.config.getoption(name)) for name in ("--device", "--tier", "--shapes")}
            workers = getattr(self.config.option, "numprocesses", None) or 1
            record("locks", {"options": options, "workers": workers, **summary(self.rows, seconds)})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A lock that takes `device` runs once on every chosen device."""
    if "device" in metafunc.fixturenames:
        choice = metafunc.config.getoption("--device")
        names = ["host", "cuda"] if choice == "all" else [choice]
        metafunc.parametrize("device", names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name what this tier, these shapes and the host leave out, and give every report its lock's sentence."""
    for item in items:
        doc = (getattr(getattr(item, "function", None), "__doc__", None) or "").strip()
        item.user_properties.append((SENTENCE, " ".join(doc.split("\n\n")[0].split())))
        if item.get_closest_marker("nightly") and config.getoption("--tier") != "nightly":
            item.add_marker(pytest.mark.skip(reason=f"{NOT_RUN}nightly tier only (--tier nightly)"))
        if item.get_closest_marker("full") and config.getoption("--shapes") != "full":
            item.add_marker(pytest.mark.skip(reason=f"{NOT_RUN}full shapes only (--shapes full)"))
        on = getattr(getattr(item, "callspec", None), "params", {}).get("device", "cuda")
        if item.get_closest_marker("gpu") and on == "host":
            item.add_marker(pytest.mark.skip(reason=f"{NOT_RUN}needs a GPU (--device cuda or all)"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A red lock of a kernel prints the line that runs it again."""
    report = yield
    if report.failed and call.excinfo is not None:
        from locks.red import reproduction  # only a red lock needs it

        if line := reproduction(item, call.excinfo):
            report.sections.append(("reproduce", line))
    return report


@pytest.fixture(scope="session")
def devices(request: pytest.FixtureRequest) -> tuple[dict[str, Device], dict[str, str]]:
    """Every device of this machine, and the reason for each that is missing."""
    return available(_choice(request.config))


def _choice(config: pytest.Config) -> str:
    return str(config.getoption("--device"))


@pytest.fixture
def device(request: pytest.FixtureRequest, devices: tuple[dict[str, Device], dict[str, str]]) -> Device:
    """The device a lock runs on; a missing one is a named 'not run'."""
    opened, missing = devices
    if request.param in missing:
        pytest.skip(f"{NOT_RUN}{missing[request.param]}")
    return opened[request.param]


@pytest.fixture
def both_devices(devices: tuple[dict[str, Device], dict[str, str]]) -> tuple[Device, Device]:
    """Host and GPU, for locks that compare their bits; not run unless --device all finds both."""
    opened, missing = devices
    if "host" not in opened or "cuda" not in opened:
        pytest.skip(NOT_RUN + missing.get("cuda", "needs both devices (--device all)"))
    return opened["host"], opened["cuda"]


@pytest.fixture
def share(record_property: Callable[[str, object], None]) -> Callable[[str, float, float], float]:
    """Report how much of a bound an error used; returns the share. A NaN error and a bound that is none fail."""

    def report(what: str, error: float, bound: float) -> float:
        # an infinite bound would let any error pass
        assert bound == bound and bound != float("inf"), f"{what}: the bound is {bound}"  # noqa: PLR0124, PT018  # NaN
        used = float(error) / float(bound) if bound > 0 else (0.0 if error == 0 else float("inf"))
        print(f"share of bound: {what}: {used:.3f} (error {error:.3e}, bound {bound:.3e})")
        record_property(f"share {what}", used)
        assert used == used, f"{what}: the error is NaN"  # noqa: PLR0124  # NaN differs from itself
        return used

    return report


def pytest_terminal_summary(terminalreporter: object) -> None:
    """Count what was not run, by reason, apart from what passed."""
    stats = terminalreporter.stats  # type: ignore[attr-defined]  # pytest's reporter has no public type
    reasons: dict[str, int] = {}
    for report in stats.get("skipped", []):
        text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reason = text.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    shares = [
        (value, report.nodeid, name)
        for report in stats.get("passed", [])
        for name, value in getattr(report, "user_properties", [])
        if name.startswith("share ")
    ]
    write = terminalreporter.write_line  # type: ignore[attr-defined]  # as above
    if reasons:
        terminalreporter.section("not run")  # type: ignore[attr-defined]  # as above
        for reason, count in sorted(reasons.items()):
            write(f"{count:5d}  {reason}")
    if shares:
        terminalreporter.section("largest shares of a bound")  # type: ignore[attr-defined]  # as above
        for value, node, name in sorted(shares, reverse=True)[:8]:
            write(f"{value:6.3f}  {node}  {name.removeprefix('share ')}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which no lock ran is a failure, not a pass."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and exitstatus == 0 and not reporter.stats.get("passed"):
        reporter.write_line("no lock ran: nothing passed and nothing failed")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
