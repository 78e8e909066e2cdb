"""Line plots on logarithmic axes as SVG text, coloured by the style sheet of the page that holds them."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 74, 28, 12, 52


@dataclass(frozen=True, slots=True)
class Line:
    """One series. look: classes of the style sheet; points: (x, y); a y that is no positive number is a gap."""

    name: str
    look: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axes:
    """Labels with units; ticks of x; log_x: x on a logarithmic axis too."""

    across: str
    up: str
    ticks: Sequence[float]
    log_x: bool = False


def plot(lines: Sequence[Line], axes: Axes) -> str:
    """An SVG element. Every line tells its name and its last value when pointed at; a gap is stated below the plot."""
    values = [y for line in lines for _, y in line.points if drawable(y)]
    low, high = _decades(values)
    place = _Place(axes, [x for line in lines for x, _ in line.points], low, high)
    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{html.escape(axes.up)}'>"]
    parts += _grid(axes, place, low, high)
    parts += [_drawn(line, place) for line in lines]
    parts.append("</svg>")
    if gaps := [line.name for line in lines if not all(drawable(y) for _, y in line.points)]:
        parts.append(f"<p class='gap'>zero or not finite, so not drawn everywhere: {html.escape(', '.join(gaps))}</p>")
    return "".join(parts)


def drawable(y: float) -> bool:
    """Whether a logarithmic axis has a place for it."""
    return math.isfinite(y) and y > 0


def _decades(values: Sequence[float]) -> tuple[int, int]:
    if not values:
        return -1, 0
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


class _Place:
    """Where a point lies on the drawing."""

    def __init__(self, axes: Axes, xs: Sequence[float], low: int, high: int) -> None:
        self.log_x, self.low, self.high = axes.log_x, low, high
        every = [self._scaled(x) for x in (*xs, *axes.ticks)] or [0.0]
        self.first, self.span = min(every), max(max(every) - min(every), 1e-9)

    def _scaled(self, x: float) -> float:
        return math.log10(x) if self.log_x else x

    def x(self, x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (self._scaled(x) - self.first) / self.span

    def y(self, y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - math.log10(y)) / (self.high - self.low)


def _grid(axes: Axes, place: _Place, low: int, high: int) -> list[str]:
    floor, middle = HEIGHT - BOTTOM, (HEIGHT - BOTTOM + TOP) / 2
    parts = []
    # a label every second decade where there are many, and lines at 2 and 5 where there are few
    step = 1 if high - low <= 6 else 2
    for power in range(low, high + 1):
        at = place.y(10.0**power)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{at:.1f}' y2='{at:.1f}'/>")
        if (power - low) % step == 0:
            parts.append(f"<text x='{LEFT - 8}' y='{at + 4:.1f}' text-anchor='end'>10<tspan dy='-5' "
                         f"class='small'>{power}</tspan></text>")  # fmt: skip  # one element
        for part in (2, 5) if high - low <= 2 and power < high else ():
            fine = place.y(part * 10.0**power)
            parts.append(f"<line class='fine' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{fine:.1f}' y2='{fine:.1f}'/>")
            parts.append(f"<text class='small' x='{LEFT - 8}' y='{fine + 3:.1f}' text-anchor='end'>{part}</text>")
    for tick in axes.ticks:
        at = place.x(tick)
        parts.append(f"<line class='tick' x1='{at:.1f}' x2='{at:.1f}' y1='{floor}' y2='{floor + 4}'/>")
        parts.append(f"<text x='{at:.1f}' y='{floor + 18}' text-anchor='middle'>{tick:,.0f}</text>")
    parts.append(f"<line class='axis' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{floor}' y2='{floor}'/>")
    centre = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f"<text class='label' x='{centre}' y='{HEIGHT - 10}' text-anchor='middle'>"
                 f"{html.escape(axes.across)}</text>")  # fmt: skip  # one element
    parts.append(f"<text class='label' transform='rotate(-90)' x='{-middle}' y='16' text-anchor='middle'>"
                 f"{html.escape(axes.up)}</text>")  # fmt: skip  # one element
    return parts


def _drawn(line: Line, place: _Place) -> str:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if drawable(y):
            runs[-1].append((place.x(x), place.y(y)))
        elif runs[-1]:
            runs.append([])
    title = f"<title>{html.escape(line.name)}: {line.points[-1][1]:.2e} at the end</title>" if line.points else ""
    body = "".join(_run(run) for run in runs if run)
    return f"<g class='line {line.look}'>{title}{body}</g>"


def _run(run: Sequence[tuple[float, float]]) -> str:
    if len(run) == 1:
        return f"<circle cx='{run[0][0]:.1f}' cy='{run[0][1]:.1f}' r='2.5'/>"
    return f"<polyline points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in run)}'/>"
