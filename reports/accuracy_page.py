"""The accuracy report as rows of text, as Markdown, and as one HTML page that needs nothing else."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reports.accuracy import LaneAccuracy
from reports.accuracy_style import NOTES, STYLE
from reports.plot import Axes, Line, plot
from reports.state_drift import Mark

HEADER = ("lane", "rel_L2", "quantisation", "arithmetic", "max error", "KL", "same top", "share of bound", "golden",
          "MB a step", "tok/s")  # fmt: skip  # one row
WINDOWS = 24  # points of a drift plot: each is the root mean square over its window


@dataclass(frozen=True, slots=True)
class Report:
    """What is shown. golden: lane -> `holds`, or its first divergence. speeds: lane -> tokens a second.

    withheld: lane -> why it has no speed. drift: lane -> marks of its state. circumstances: lines about the run.
    """

    title: str
    lanes: Sequence[LaneAccuracy]
    golden: Mapping[str, str] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    withheld: Mapping[str, str] = field(default_factory=dict)
    drift: Mapping[str, Sequence[Mark]] = field(default_factory=dict)
    circumstances: Sequence[str] = ()


def rows(report: Report) -> list[tuple[str, ...]]:
    """The table as text, a row a lane, in the columns of HEADER."""
    return [_row(report, r) for r in report.lanes]


def _row(report: Report, r: LaneAccuracy) -> tuple[str, ...]:
    total = r.logits.total
    speed = f"{report.speeds[r.lane]:.1f}" if r.lane in report.speeds else "withheld"
    return (
        r.lane,
        f"{total.rel_l2:.2e}",
        f"{r.logits.quantisation.rel_l2:.2e}",
        f"{r.logits.arithmetic.rel_l2:.2e}",
        f"{total.largest:.2e}",
        f"{total.kl:.2e}",
        f"{total.same_top:.3f}",
        "-" if r.share is None else f"{r.share:.3f}",
        report.golden.get(r.lane, "none"),
        f"{r.bytes_a_step / 1e6:.2f}",
        speed if report.speeds or report.withheld else "-",
    )


def summary(report: Report) -> str:
    """What the table says, in sentences."""
    said = []
    broken = [r.lane for r in report.lanes if not math.isfinite(r.logits.total.rel_l2)]
    if broken:
        said.append(f"NOT A NUMBER: the logits of {', '.join(broken)} hold a NaN or an infinity.")
    shares = [(r.share, r.lane) for r in report.lanes if r.share is not None]
    if shares and (worst := max(shares))[0] <= 1 and not any(r.unexcused for r in report.lanes):
        said.append(f"Every logit lies within its derived bound; the largest share is {worst[0]:.2f} ({worst[1]}).")
    elif shares:
        outside = [r.lane for r in report.lanes if r.unexcused or (r.share is not None and not r.share <= 1)]
        said.append(f"OUTSIDE ITS BOUND: {', '.join(outside)}.")
    same = [r for r in report.lanes if r.logits.total.same_top == 1]
    said.append(f"{len(same)} of {len(report.lanes)} lanes choose float64's best token at every position.")
    if wrong := [lane for lane, state in report.golden.items() if state != "holds"]:
        said.append(f"GOLDEN STREAMS DIFFER: {', '.join(wrong)}.")
    return " ".join(said)


def markdown(report: Report) -> str:
    """A heading, the summary and the table."""
    lines = [f"# {report.title}", "", summary(report), "", "| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(report)]
    lines += ["", *(f"- {lane}: no speed, {why}" for lane, why in report.withheld.items())]
    lines += [*(f"- {line}" for line in report.circumstances)]
    return "\n".join(lines).rstrip() + "\n"


def page(report: Report) -> str:
    """The whole page."""
    title = html.escape(report.title)
    about = "".join(f"<li>{html.escape(line)}</li>" for line in report.circumstances)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<meta name='color-scheme' content='light dark'><title>{title}</title><style>{STYLE}</style><main>"
        f"<h1>{title}</h1><p class='lead'>{html.escape(summary(report))}</p>{_table(report)}"
        f"{_withheld(report)}{_legend(r.lane for r in report.lanes)}"
        f"<div class='plots'>{''.join(_figures(report))}</div>{NOTES}<footer><ul>{about}</ul></footer></main></html>\n"
    )


def _withheld(report: Report) -> str:
    if not report.withheld:
        return ""
    reasons = sorted(set(report.withheld.values()))
    lines = (f"{', '.join(k for k, v in report.withheld.items() if v == why)}: {why}" for why in reasons)
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<p>Speed is withheld where this commit's locks do not hold the lane:</p><ul>{items}</ul>"


def _key(lane: str) -> str:
    drawn = f"<g class='line {look(lane)}'><polyline points='0,4 24,4'/></g>"
    return f"<svg class='key' viewBox='0 0 24 8'>{drawn}</svg>{html.escape(lane)}"


def _table(report: Report) -> str:
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in HEADER)
    body = []
    for r, row in zip(report.lanes, rows(report), strict=True):
        cells = [f"<th scope='row'>{_key(r.lane)}</th>"]
        cells += [_cell(name, value, r) for name, value in zip(HEADER[1:], row[1:], strict=True)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"


def _cell(name: str, value: str, r: LaneAccuracy) -> str:
    bad = "nan" in value or "inf" in value or (name == "golden" and value not in ("holds", "none"))
    if name == "share of bound" and r.share is not None:
        bad = bad or not r.share <= 1 or r.unexcused > 0
        width = min(r.share, 1.0) * 100 if math.isfinite(r.share) else 100.0
        mark = f"<span class='bar'><i style='width:{width:.0f}%'></i></span>"
        return f"<td class='{'bad' if bad else ''}'>{mark}{html.escape(value)}</td>"
    return f"<td class='{'bad' if bad else ''}'>{html.escape(value)}</td>"


def look(lane: str) -> str:
    """Classes of a lane: the colour is its base's, the dashes are its extras'."""
    base, *extras = lane.split("+")
    return f"base-{base} extra-{'-'.join(extras) or 'none'}"


def _legend(lanes: Iterable[str]) -> str:
    return f"<p class='legend'>{''.join(f'<span>{_key(lane)}</span>' for lane in lanes)}</p>"


def _figures(report: Report) -> list[str]:
    layers = max((len(r.layers) for r in report.lanes), default=0)
    last = max((r.at[-1] for r in report.lanes if r.at), default=1)
    by_layer = Axes("layer", "rel_L2", range(0, layers, max(1, layers // 8)))
    by_length = Axes("position (tokens)", "rel_L2", round_ticks(last))
    whole, part = "against float64", "the part of it that is not in the codes"
    made = [
        _figure("Error behind each layer", f"of the residual stream, {whole}", plot(_by_layer(report, 0), by_layer)),
        _figure("Arithmetic behind each layer", part, plot(_by_layer(report, 2), by_layer)),
        _figure("Drift with length", f"of the logits, {whole}", plot(_by_length(report, 0), by_length)),
        _figure("Arithmetic with length", part, plot(_by_length(report, 2), by_length)),
    ]
    return [*made, _state_figure(report.drift)] if report.drift else made


def _by_layer(report: Report, part: int) -> list[Line]:
    return [Line(r.lane, look(r.lane), [(i, errors[part]) for i, errors in enumerate(r.layers)]) for r in report.lanes]


def _by_length(report: Report, part: int) -> list[Line]:
    return [Line(r.lane, look(r.lane), windows(r.at, [errors[part] for errors in r.drift])) for r in report.lanes]


def _state_figure(drift: Mapping[str, Sequence[Mark]]) -> str:
    lines = []
    for lane, marks in drift.items():
        lines.append(Line(lane, look(lane), [(m.tokens, m.rel_l2) for m in marks]))
        lines.append(Line(f"{lane}, bound", f"{look(lane)} bound", [(m.tokens, m.bound) for m in marks]))
    tokens = [m.tokens for marks in drift.values() for m in marks]
    ticks = [10.0**p for p in range(6) if min(tokens) <= 10**p <= max(tokens)] or [min(tokens), max(tokens)]
    what = "of the recurrent states, against their float64 recurrence; faint lines are the bounds"
    drawing = _legend(drift) + plot(lines, Axes("tokens", "rel_L2", ticks, log_x=True))
    return _figure("States of a long decode", what, drawing)


def _figure(title: str, what: str, drawing: str) -> str:
    return f"<figure><figcaption><b>{html.escape(title)}</b> {html.escape(what)}</figcaption>{drawing}</figure>"


def windows(at: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    """At most WINDOWS points: the middle of each window of positions, and the root mean square of its values."""
    parts = np.array_split(np.arange(len(at)), min(WINDOWS, len(at)))
    line = np.asarray(values, np.float64)
    return [(float(np.mean([at[i] for i in part])), float(np.sqrt((line[part] ** 2).mean()))) for part in parts]


def round_ticks(last: float) -> list[float]:
    """Zero, and some round whole numbers up to the last position."""
    step = 10.0 ** math.floor(math.log10(max(last, 1)))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if s >= 1 and last / s <= 8)
    return [step * i for i in range(int(last / step) + 1)]
