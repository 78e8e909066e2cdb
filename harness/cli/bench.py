"""`lanelock bench projections|counters|state|attention|decode|compare`: speed, and the bits of what was timed."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from harness.cli.report import wide_console
from harness.device import Device
from harness.devices import open_device
from harness.progress import shown
from harness.record import check_records, record
from oracle import json_text
from oracle.config import load as load_config
from oracle.errors import LanelockError
from oracle.weights import load
from reports import (
    bench_attention,
    bench_counters,
    bench_cublas,
    bench_decode,
    bench_projections,
    bench_sdpa,
    bench_state,
)
from reports.bench_buffers import Bench, step_projections

#: What the read bandwidth is measured on.
READ_BYTES = {"cuda": 1 << 31, "host": 1 << 16}


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    sub = commands.add_parser("bench", help="measured speed of projections, state kernels, attention or a whole decode")
    names = "projections|counters|state|attention|decode|compare"
    kinds = sub.add_subparsers(dest="kind", required=True, metavar=names)
    projections = kinds.add_parser("projections", help="the projections of a step as one graph")
    projections.add_argument("--prefill", type=int, default=512, metavar="N", help="rows of the prefill case (512)")
    projections.add_argument("--no-cublas", action="store_true", help="do not time cuBLAS through PyTorch")
    projections.set_defaults(func=run_projections)
    counters = kinds.add_parser("counters", help="what limits the projections: counters of the chip (Nsight Compute)")
    counters.set_defaults(func=run_counters)
    state = kinds.add_parser("state", help="the Gated DeltaNet kernels of a step, every layer in one graph")
    state.add_argument("--prefill", default="512,4096", metavar="N,N", help="tokens of the prefill cases (512,4096)")
    state.add_argument("--no-fla", action="store_true", help="do not time flash-linear-attention")
    state.set_defaults(func=run_state)
    attention = kinds.add_parser("attention", help="attention of a layer: decode, verify and prefill")
    attention.add_argument("--context", type=int, default=131072, metavar="N", help="longest context (131072)")
    attention.add_argument("--no-torch", action="store_true", help="do not time PyTorch's attention")
    attention.set_defaults(func=run_attention)
    decode = kinds.add_parser("decode", help="a whole decode step, replayed as one graph")
    decode.add_argument("--weights", default="synthetic:1", metavar="W", help="weights (synthetic:1)")
    decode.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens of a prompt (512)")
    decode.add_argument("--n", type=int, default=128, metavar="N", help="tokens to make (128)")
    decode.add_argument("--lane", action="append", choices=bench_decode.LANES, metavar="L",
                        help="this exact lane (may be given again; default: all)")  # fmt: skip
    decode.set_defaults(func=run_decode)
    for one in (projections, counters, state, attention, decode):
        one.add_argument("--config", default="qwen3.8-27b", metavar="C", help="preset or JSON file (qwen3.8-27b)")
        one.add_argument("--device", default="cuda", help="cuda (default), cuda:N or host")
        one.add_argument("--most", type=int, default=64, metavar="B", help="largest batch that is measured (64)")
        one.add_argument("--no-record", action="store_true", help="write no record under reports/records/")
        one.add_argument("--json", action="store_true", help="print JSON")
    compare = kinds.add_parser("compare", help="two records side by side")
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json")
    compare.set_defaults(func=run_compare)


def run_projections(args: argparse.Namespace) -> int:
    """Exit 1 if a projection's bits are wrong."""
    _check_record(args)
    device, config = open_device(args.device), load_config(args.config)
    cases = bench_projections.at_most(bench_projections.CASES, args.most, args.prefill)
    # a host's times are no figures
    effort = bench_projections.Effort(1, 0.0) if device.properties.kind == "host" else None
    figures = bench_projections.measure(device, config, cases, effort)
    if not args.no_cublas and device.properties.kind == "cuda":
        shapes = [(p.N, p.K) for p in step_projections(config)]
        decode = bench_cublas.beside(shapes, [n for n in (1, 8, 32, 64) if n <= args.most])
        figures["cublas_ms"] = decode | bench_cublas.beside(shapes[:-1], [args.prefill])
    columns = ("ms", "GB_s", "share", "TOPS", "sustained_ms", "sustained_share")
    _finish(args, "bench-projections", figures, columns)
    return 0 if all(all(row["bits"].values()) for row in figures["rows"]) else 1


def run_counters(args: argparse.Namespace) -> None:
    """One line a case and shape: time, what the chip was busy with, instructions a block, what warps waited for."""
    _check_record(args)
    open_device(args.device)
    cases = [c for c in bench_projections.CASES if c.rows <= min(args.most, bench_projections.DECODE_ROWS)]
    rows = bench_counters.measure(args.config, cases)
    path = None if args.no_record else record("bench-counters", {"config": args.config, "rows": rows})
    if args.json:
        print(json.dumps({"rows": rows, "record": None if path is None else path.name}, indent=1))
        return
    console = wide_console()
    names = ("us", "memory", "issue", "shared", "multiprocessors", "instructions")
    table = Table("case", "shape", *names, "nearest", "waits for", box=None)
    for row in rows:
        figures = (f"{row[name]:.4g}" for name in names)
        table.add_row(row["case"], row["shape"], *figures, row["nearest"], row["waits_for"])
    console.print(table)
    console.print(f"record: {'none' if path is None else path.name}")


def run_state(args: argparse.Namespace) -> int:
    """Exit 1 if a kernel's bits are wrong."""
    _check_record(args)
    device, config = open_device(args.device), load_config(args.config)
    prefill = _lengths(args.prefill)
    cases = bench_state.state_cases(args.most, prefill)
    if not cases:
        raise LanelockError(f"bench state: no case has at most {args.most} sequences, and no prefill is asked for")
    with _beside_read(device) as (bench, read):
        update = bench.update_speed(bench.alloc("update", READ_BYTES[device.properties.kind]), _processors(device))
        bench.release(0)
        rows = bench_state.measure_state(bench, config, update, cases)
    figures = _of_run(config.name, read, rows) | {"update_GB_s": update, "faster": bench_state.faster(rows)}
    if not args.no_fla and device.properties.kind == "cuda":
        figures["fla"] = bench_state.beside_fla(config, [n for n in (1, 8, 32, 64) if n <= args.most], prefill)
    _finish(args, "bench-state", figures, ("us", "GB_s", "share", "rel_L2"))
    return 0 if all(all(row["bits"].values()) for row in rows) else 1


def _lengths(text: str) -> list[int]:
    """The lengths of `512,4096`, or none of an empty text. Raises LanelockError naming what is none."""
    parts = [part for part in text.split(",") if part]
    for part in parts:
        if not (part.isascii() and part.isdigit() and int(part) > 0):
            raise LanelockError(f"--prefill: {part!r} is no number of tokens, at least 1")
    return [int(part) for part in parts]


def run_decode(args: argparse.Namespace) -> int:
    """Exit 1 if the streams of a lane disagree."""
    _check_record(args)
    device, weights = open_device(args.device), load(args.weights, load_config(args.config))
    cases = [
        replace(c, prompt=args.prompt, count=args.n, chunk=min(c.chunk, args.prompt))
        for lane in args.lane or bench_decode.LANES
        for c in bench_decode.cases_of(lane)
        if args.most >= c.B
    ]
    if not cases:
        raise LanelockError(f"bench decode: no case has at most {args.most} sequences")
    with _beside_read(device) as (_, read):
        pass  # the engines need its memory
    with shown("bench decode") as progress:
        rows = bench_decode.measure_all(device, weights, cases, read, progress)
    figures = _of_run(weights.config.name, read, rows) | {"weights": args.weights}
    _finish(args, "bench-decode", figures, ("ms", "ms_a_step_p99", "tokens_a_second", "first_token_ms", "share"))
    if not args.json:
        for row in rows:
            _print_held_back(row)
    return 0 if all(row["streams_agree"] for row in rows) else 1


@contextmanager
def _beside_read(device: Device) -> Iterator[tuple[Bench, float]]:
    """A bench that holds nothing, and the read bandwidth of this run in GB/s."""
    bench = Bench(device)
    try:
        memory = bench.alloc("read", READ_BYTES[device.properties.kind])
        read = bench.read_speed(memory, _processors(device))
        bench.release(0)
        yield bench, read
    finally:
        bench.close()


def _processors(device: Device) -> int:
    return device.properties.multiprocessors


def _of_run(config: str, read: float, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures that every bench of this command has: a run whose memory reads slowly is disturbed."""
    return {"config": config, "read_GB_s": read, "valid": read >= bench_projections.LEAST_READ, "rows": rows}


def _check_record(args: argparse.Namespace) -> None:
    if not args.no_record:
        check_records()


def _print_held_back(row: Mapping[str, Any]) -> None:
    """The kernels of a case that lie furthest above their floors."""
    if "kernels" not in row:
        return
    table = Table(f"{row['name']}: above its floor", "launches", "ms", "floor ms", "over ms", box=None)
    for kernel in row["kernels"][:12]:
        figures = (f"{kernel[c]:.3f}" for c in ("ms", "floor_ms", "over_ms"))
        table.add_row(kernel["name"], str(kernel["launches"]), *figures)
    wide_console().print(table)


def run_attention(args: argparse.Namespace) -> int:
    """Exit 1 if the bits of a form are wrong."""
    _check_record(args)
    device, config = open_device(args.device), load_config(args.config)
    cases = [c for c in bench_attention.attention_cases() if args.most >= c.B and args.context >= c.context]
    if not cases:
        limits = f"{args.most} sequences and a context of {args.context}"
        raise LanelockError(f"bench attention: no case lies within {limits}")
    with _beside_read(device) as (bench, read):
        rows = bench_attention.measure_attention(bench, config, cases)
    figures = _of_run(config.name, read, rows)
    if not args.no_torch and device.properties.kind == "cuda":
        halves = {c.name: (c.B, c.T, c.context) for c in cases if "kv16" in c.lane}
        figures["torch_us"] = bench_sdpa.beside((config.q_heads, config.kv_heads, config.head_dim), halves)
    _finish(args, "bench-attention", figures, ("us", "GB_s", "TFLOP_s"))
    return 0 if all(all(row["bits"].values()) for row in rows) else 1


def _finish(args: argparse.Namespace, kind: str, figures: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    """Record and print."""
    path = None if args.no_record else record(kind, figures)
    if args.json:
        print(json.dumps({**figures, "record": None if path is None else path.name}, indent=1))
        return
    console = wide_console()
    table = Table("case", *columns, box=None)
    for row in figures["rows"]:
        table.add_row(row["name"], *(_cell(row, c) for c in columns))
    console.print(table)
    _print_shapes(figures["rows"])
    console.print(f"read bandwidth of this run: {figures['read_GB_s']:.0f} GB/s")
    if "update_GB_s" in figures:
        console.print(f"read and write bandwidth of this run: {figures['update_GB_s']:.0f} GB/s")
    if not figures["valid"]:
        console.print(f"not valid: an undisturbed H200 reads at least {bench_projections.LEAST_READ:.0f} GB/s")
    for name, ms in figures.get("cublas_ms", {}).items():
        console.print(f"cuBLAS {name}: {ms}")
    for name, value in {**figures.get("faster", {}), **figures.get("fla", {}), **figures.get("torch_us", {})}.items():
        console.print(f"{name}: {value}")
    console.print(f"record: {'none' if path is None else path.name}")


def _cell(row: Mapping[str, Any], column: str) -> str:
    """A number, nothing where a case has none, or "wrong" for a case whose bits were."""
    if row.get(column) is not None:
        return f"{row[column]:.4g}"
    return "" if "ms" in row else "wrong"


def _print_shapes(rows: Sequence[Mapping[str, Any]]) -> None:
    """The share of the memory's speed that each shape reaches by itself, a column a shape."""
    timed = [row for row in rows if row.get("shapes")]
    names = list(dict.fromkeys(one["shape"] for row in timed for one in row["shapes"]))
    if not names:
        return
    table = Table("share of a shape", *names, box=None)
    for row in timed:
        shares = {one["shape"]: f"{one['share']:.3f}" for one in row["shapes"]}
        table.add_row(row["name"], *(shares.get(name, "") for name in names))
    wide_console().print(table)


def run_compare(args: argparse.Namespace) -> None:
    """What was measured where, and every case of either record: its milliseconds, and those to the first token.

    Raises LanelockError for records of different benches or models, or with no case in common.
    """
    records = [_read_record(path) for path in (args.first, args.second)]
    of_what = [(r["kind"], r["figures"].get("config")) for r in records]
    if of_what[0] != of_what[1]:
        one, other = (" of ".join(filter(None, what)) for what in of_what)
        raise LanelockError(f"{args.first} is a {one}, {args.second} a {other}: they are not compared.")
    first, second = ({row["name"]: row for row in r["figures"]["rows"]} for r in records)
    if not first.keys() & second.keys():
        raise LanelockError(f"{args.first} and {args.second} hold no case in common.")
    console, cases = wide_console(), list(dict.fromkeys([*first, *second]))
    for letter, r in zip("AB", records, strict=True):
        console.print(f"{letter}: {_where(r)}")
    for column, title in (("ms", "ms"), ("first_token_ms", "first token ms")):
        if any(column in row for row in (*first.values(), *second.values())):
            table = Table(title, "A", "B", "B / A", box=None)
            for name in cases:
                table.add_row(name, *_beside(first.get(name), second.get(name), column))
            console.print(table)


def _beside(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, column: str) -> tuple[str, str, str]:
    """Both figures and their ratio: "-" for a case that a record does not hold, "wrong" where its bits were."""
    cells = ["-" if row is None else _cell(row, column) for row in (first, second)]
    a, b = ((row or {}).get(column) for row in (first, second))
    return cells[0], cells[1], f"{b / a:.3f}" if a and b is not None else ""


def _where(record: Mapping[str, Any]) -> str:
    """Kind, model, date, commit and processors of a record."""
    gpus = ", ".join(str(gpu["name"]) for gpu in record.get("gpus") or ()) or str(record.get("cpu"))
    dirty = " with changes" if record.get("dirty") else ""
    valid = "" if record["figures"].get("valid", True) else "; NOT VALID: its memory read too slowly"
    model = record["figures"].get("config", "")
    return f"{record['kind']} {model}, {record['date']}, {str(record['commit'])[:12]}{dirty}, {gpus}{valid}"


def _read_record(path: Path) -> dict[str, Any]:
    """A record of a bench. Raises LanelockError for a file that is none."""
    try:
        data = json_text.loads(path.read_text(encoding="utf-8"))
        figures = [float(row.get(name, 1.0)) for row in data["figures"]["rows"] for name in ("ms", "first_token_ms")]
        named = {str(row["name"]) for row in data["figures"]["rows"]}
        if not named or not all(0 < figure < math.inf for figure in figures):
            raise ValueError("no case, or a time that is none")
        _where(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LanelockError(f"{path}: not a readable record of a bench ({error}).") from error
    return dict(data)
