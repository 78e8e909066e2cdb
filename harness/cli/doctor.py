"""`lanelock doctor`: what of this machine lanelock can use, what is missing, and which versions do not fit."""

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cache import cache_root, write_whole
from harness.cuda import compiler, headers, list_gpus
from harness.cuda.bindings import core_device, nvrtc, version_of
from harness.device import BuildError, NotRun
from harness.devices import open_device
from kernels.entry import ALL_ARCHS
from oracle.errors import LanelockError

#: ok: works. absent: not here, so what needs it is not run. stale: here, does not fit. broken: must work, does not.
OK, ABSENT, STALE, BROKEN = "ok", "absent", "stale", "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of the machine, its state, and a sentence about it."""

    part: str
    state: str
    says: str


def register(subparsers: Any) -> None:
    """Add the command."""
    command = subparsers.add_parser("doctor", help="what of this machine lanelock can use, in plain words")
    command.add_argument("--json", action="store_true", help="print the findings as JSON")
    command.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 when the host device works, 1 when it does not."""
    findings = examine()
    healthy = not any(f.state == BROKEN for f in findings)
    if args.json:
        print(json.dumps({"healthy": healthy, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        for f in findings:
            print(f"{f.state:<7} {f.part:<14} {f.says}")
        print(summary(findings))
    return 0 if healthy else 1


def examine() -> tuple[Finding, ...]:
    """Every part, in the order in which one needs them."""
    parts: tuple[tuple[str, Callable[[], tuple[Finding, ...]]], ...] = (
        ("Python", python),
        ("compile cache", cache),
        ("host device", host),
        ("cuda-python", cuda_python),
        ("NVRTC", run_time_compiler),
        ("headers", toolkit_headers),
        ("CUDA_PATH", environment),
        ("GPU", graphics),
    )
    found: list[Finding] = []
    for name, look in parts:
        try:
            found.extend(look())
        except NotRun as absent:
            found.append(Finding(name, ABSENT, str(absent)))
        except BuildError as stale:
            found.append(Finding(name, STALE, str(stale).splitlines()[0]))
    return tuple(found)


def summary(findings: tuple[Finding, ...]) -> str:
    """One sentence: where the locks can run."""
    state = {f.part: f.state for f in findings}
    if BROKEN in state.values():
        return "The host device does not work here; repair what is broken above first."
    if state.get("GPU") == OK:
        return "Both devices work: run the locks with --device all."
    return "The host device works; locks that need a GPU are reported as not run."


def python() -> tuple[Finding, ...]:
    """Interpreter and processor."""
    return (Finding("Python", OK, f"{platform.python_version()} on {platform.machine()}"),)


def cache() -> tuple[Finding, ...]:
    """The compile cache can be written."""
    root = cache_root()
    try:
        write_whole(root / "writable", "")
    except LanelockError as error:
        return (Finding("compile cache", BROKEN, str(error)),)
    return (Finding("compile cache", OK, str(root)),)


def host() -> tuple[Finding, ...]:
    """The host device opens, which needs a C++20 compiler."""
    try:
        properties = open_device("host").properties
    except (LanelockError, ImportError, OSError) as error:
        return (Finding("host device", BROKEN, str(error).splitlines()[0]),)
    return (Finding("host device", OK, f"{properties.compiler}, {properties.arch}"),)


def cuda_python() -> tuple[Finding, ...]:
    """cuda.bindings and cuda.core can be imported."""
    nvrtc()
    where = core_device().__module__
    return (
        Finding("cuda-python", OK, f"cuda-bindings {version_of('cuda-bindings')}, cuda-core {version_of('cuda-core')}"),
        Finding("cuda.core", OK, f"Device is found in {where}"),
    )


def run_time_compiler() -> tuple[Finding, ...]:
    """NVRTC, whether it fits the bindings, and the architectures of the catalogue that it does not know."""
    major, minor = compiler.version()
    bindings = version_of("cuda-bindings") or ""
    found = [Finding("NVRTC", OK, f"{major}.{minor}")]
    if bindings and bindings.split(".")[0] != str(major):
        says = f"NVRTC {major}.{minor} and cuda-bindings {bindings} are of different CUDA generations"
        found = [Finding("NVRTC", STALE, f"{says}: install nvidia-cuda-nvrtc {bindings.split('.')[0]}")]
    for arch in ALL_ARCHS:
        try:
            compiler.require_arch(arch)
        except NotRun as unknown:
            found.append(Finding(arch, ABSENT, str(unknown)))
    return tuple(found)


def toolkit_headers() -> tuple[Finding, ...]:
    """The header wheels are there, of NVRTC's version, and compile."""
    parts = headers.from_wheels()
    headers.compile_probe(f"sm_{max(a for a in compiler.supported() if a <= 90)}", parts)
    return (Finding("headers", OK, ", ".join(f"{p.owner} {p.version[0]}.{p.version[1]}" for p in parts)),)


def environment() -> tuple[Finding, ...]:
    """A CUDA_PATH or CUDA_HOME is named and not used."""
    found = []
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if folder := os.environ.get(variable):
            try:
                version = "CUDA {}.{}".format(*headers.stated_version(Path(folder) / "include"))
            except BuildError:
                version = "no CUDA headers"
            found.append(Finding(variable, OK, f"{folder} ({version}) is not used: compiler and headers are wheels"))
    return tuple(found)


def graphics() -> tuple[Finding, ...]:
    """The driver, whether it can load what NVRTC makes, and each GPU."""
    listing = list_gpus()
    if not listing.found:
        return (Finding("GPU", ABSENT, listing.reason),)
    found = [
        Finding("GPU", OK, f"cuda:{g.index} {g.name}, {g.arch}, {g.memory / 2**30:.0f} GiB") for g in listing.found
    ]
    if listing.driver is not None:
        driver = "{}.{}".format(*listing.driver)
        major, minor = compiler.version()
        if listing.driver[0] < major:
            says = f"the driver is of CUDA {driver} and cannot load what NVRTC {major}.{minor} makes"
            found.append(Finding("driver", STALE, f"{says}: install a driver of CUDA {major} or newer"))
        else:
            found.append(Finding("driver", OK, f"CUDA {driver}"))
    return tuple(found)
