"""Catalogue kernels to machine code for one architecture: compiled once, kept in the cache, report and PTX included."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cache import cache_key, cached
from harness.cuda import compiler
from harness.cuda.report import Report, parse_reports
from harness.device import BuildError
from harness.sources import KERNELS, closure_text
from kernels.entry import Instance
from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class Compiled:
    """Instantiations of one source for one architecture. names: C++ expression -> lowered name."""

    source: str
    arch: str
    cubin: bytes
    ptx: str
    names: dict[str, str]
    reports: dict[str, Report]

    def lowered(self, expression: str) -> str:
        """The name of an instantiation in the cubin and in the PTX."""
        if expression not in self.names:
            raise BuildError(f"{self.source}: {expression} was not among the instantiations compiled")
        return self.names[expression]

    def report(self, expression: str) -> Report:
        """The report of ptxas; raises BuildError when ptxas printed none, so that no limit is held against nothing."""
        name = self.lowered(expression)
        if name not in self.reports:
            raise BuildError(f"{self.source}: ptxas reported nothing about {expression} for {self.arch}")
        return self.reports[name]


def compile_instances(instances: Sequence[Instance], arch: str, options: Sequence[str] = ()) -> Compiled:
    """One program with these instantiations of one room. Raises BuildError, or NotRun for an unknown architecture."""
    sources = {inst.kernel.source for inst in instances}
    if len(sources) != 1:
        raise LanelockError(f"one program compiles one source, not {sorted(sources)}")
    return compile_file(KERNELS / sources.pop(), [inst.expression for inst in instances], arch, options)


def compile_file(source: Path, expressions: Sequence[str], arch: str, options: Sequence[str] = ()) -> Compiled:
    """Compile a source file, or take it from the cache.

    The key is the text of the source and of every header of ours below it, the flags, the architecture, the names
    and the version of NVRTC: anything that can change the machine code. Raises BuildError with the compiler's first
    error, NotRun for an architecture that this NVRTC does not know.
    """
    compiler.require_arch(arch)
    wanted = sorted(set(expressions))
    key = cache_key(
        "cuda 1", compiler.version_text(), arch, *compiler.CONTRACT_FLAGS, *options, "names", *wanted,
        closure_text(source),
    )  # fmt: skip  # a key reads as one list

    def produce(entry: Path) -> None:
        search = (f"--include-path={source.parent}", f"--include-path={KERNELS}")
        output = compiler.compile_source(source.read_text(), source.name, wanted, arch, (*search, *options))
        entry.mkdir()
        (entry / "kernel.cubin").write_bytes(output.cubin)
        (entry / "kernel.ptx").write_text(output.ptx)
        (entry / "log.txt").write_text(output.log)
        (entry / "names.json").write_text(json.dumps(output.names))

    entry = cached(key, produce)
    return Compiled(
        source=source.name,
        arch=arch,
        cubin=(entry / "kernel.cubin").read_bytes(),
        ptx=(entry / "kernel.ptx").read_text(),
        names=json.loads((entry / "names.json").read_text()),
        reports=parse_reports((entry / "log.txt").read_text()),
    )
