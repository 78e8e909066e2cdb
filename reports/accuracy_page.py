"""The accuracy report as Markdown, and as one HTML page with its plots inside."""

import html
import math
from collections.abc import Sequence

from reports.accuracy import LaneAccuracy

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#2f4858", "#d1495b", "#00798c", "#6a4c93", "#7f7f7f")
HEADER = ("lane", "rel_L2", "quantisation", "arithmetic", "max error", "KL", "same top", "golden", "MB a step")
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 60, 40

Series = tuple[str, Sequence[float]]


def rows(results: Sequence[LaneAccuracy], golden: dict[str, str]) -> list[tuple[str, ...]]:
    """The table as text, a row a lane. golden: lane -> `holds`, or the first divergence; a lane without has none."""
    return [
        (
            r.lane,
            f"{r.logits.total.rel_l2:.2e}",
            f"{r.logits.quantisation.rel_l2:.2e}",
            f"{r.logits.arithmetic.rel_l2:.2e}",
            f"{r.logits.total.largest:.2e}",
            f"{r.logits.total.kl:.2e}",
            f"{r.logits.total.same_top:.3f}",
            golden.get(r.lane, "none"),
            f"{r.bytes_a_step / 1e6:.2f}",
        )
        for r in results
    ]


def markdown(title: str, results: Sequence[LaneAccuracy], golden: dict[str, str]) -> str:
    """A heading and the table."""
    lines = [f"# {title}", "", "| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows(results, golden)), ""])


def page(title: str, results: Sequence[LaneAccuracy], golden: dict[str, str]) -> str:
    """One HTML page that needs nothing else: the table, error per layer, drift with length."""
    head = "".join(f"<th>{html.escape(h)}</th>" for h in HEADER)
    cells = ("".join(f"<td>{html.escape(c)}</td>" for c in row) for row in rows(results, golden))
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    total = [(r.lane, [layer[0] for layer in r.layers]) for r in results]
    arithmetic = [(r.lane, [layer[2] for layer in r.layers]) for r in results]
    drift = [(r.lane, [point[0] for point in r.drift]) for r in results]
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;width:100%}"
        "td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd}"
        "td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}text{font-size:11px;fill:#444}"
    )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{style}</style><h1>{html.escape(title)}</h1>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<h2>Error behind each layer, against float64</h2>{plot(total, 'layer', 'rel_L2 of the residual stream')}"
        f"<h2>Of it, the kernels' arithmetic</h2>{plot(arithmetic, 'layer', 'rel_L2 against the lane in float64')}"
        f"<h2>Drift with length</h2>{plot(drift, 'position', 'rel_L2 of the logits')}</html>\n"
    )


def plot(series: Sequence[Series], across: str, up: str) -> str:
    """Lines on a logarithmic axis as an SVG element; values that are no positive number are left out."""
    values = [v for _, line in series for v in line if v > 0 and math.isfinite(v)]
    low, high = (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if values else (-1, 0)
    high = max(high, low + 1)
    length = max((len(line) for _, line in series), default=1)

    def x(i: int) -> float:
        return LEFT + (WIDTH - LEFT - 110) * i / max(length - 1, 1)

    def y(value: float) -> float:
        return 10 + (HEIGHT - BOTTOM - 10) * (high - math.log10(value)) / (high - low)

    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{html.escape(up)} by {html.escape(across)}'>"]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - 110}' y1='{at:.1f}' y2='{at:.1f}' stroke='#ddd'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{at + 4:.1f}' text-anchor='end'>1e{power}</text>")
    for n, (name, line) in enumerate(series):
        colour = COLOURS[n % len(COLOURS)]
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(line) if v > 0 and math.isfinite(v))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.6'/>")
        parts.append(f"<text x='{WIDTH - 104}' y='{20 + 16 * n}' style='fill:{colour}'>{html.escape(name)}</text>")
    ticks = sorted({0, length // 2, length - 1})
    parts += [f"<text x='{x(i):.1f}' y='{HEIGHT - 24}' text-anchor='middle'>{i}</text>" for i in ticks]
    parts.append(f"<text x='{LEFT}' y='{HEIGHT - 6}'>{html.escape(across)}; up: {html.escape(up)}</text></svg>")
    return "".join(parts)
