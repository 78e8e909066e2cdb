"""Progress on the terminal, for commands that stream a model."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from oracle.weights.save import Progress as Report


@contextmanager
def shown(title: str) -> Iterator[Report]:
    """A function to call with a name, how much is done and how much there is.

    On a terminal a bar; otherwise a line on stderr at most every ten seconds, so that a log stays short.
    """
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    share = TextColumn("{task.percentage:3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda name, done, total: bar.update(task, description=f"{title} {name}", completed=done, total=total)


def _lines(title: str) -> Report:
    last = time.monotonic()

    def report(name: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            print(f"{title} {name}: {100 * done // total}%", file=sys.stderr, flush=True)

    return report
