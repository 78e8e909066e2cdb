"""Captured launches on the host: a list, with pointers and scalars as they were at the capture."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HostGraph:
    """Launches that replay in the order of their capture; names are those of the kernels."""

    launches: tuple[Callable[[], None], ...]
    names: tuple[str, ...]

    def replay(self, stream: Any = None) -> None:  # noqa: ARG002  # the protocol's; all streams are one
        """Launch the whole list once; raises what a launch raises. A host stream runs everything at once."""
        for launch in self.launches:
            launch()


@dataclass(slots=True)
class Capture:
    """The stream of a capture: launches given it are recorded, not run. graph is set when the capture ends."""

    launches: list[Callable[[], None]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    graph: HostGraph | None = None
