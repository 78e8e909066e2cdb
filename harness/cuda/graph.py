"""Captured launches on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """An instantiated graph and the kernels in it, in the order they were captured."""

    executable: Any
    names: tuple[str, ...]
    launch: Callable[["CudaGraph", Any], None]

    def replay(self, stream: Any = None) -> None:
        """Launch the whole list once; a fault inside shows at the next `synchronize`, with the kernels' names."""
        self.launch(self, stream)


@dataclass(slots=True)
class Capture:
    """The stream of a capture: launches given it are recorded, not run. graph is set when the capture ends."""

    handle: Any
    names: list[str] = field(default_factory=list)
    graph: CudaGraph | None = None
