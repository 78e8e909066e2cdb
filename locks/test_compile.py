"""Locks of compilation: every kernel on every architecture its entry names, with no GPU and no driver."""

import functools
import itertools
import re

import pytest

from harness.cuda import compiler
from harness.cuda.compile import Compiled, compile_instances
from harness.device import BuildError, NotRun
from harness.ptx import FAMILIES, census, entries, opcodes, violation
from harness.sources import KERNELS, closure
from kernels.catalogue import ROOMS, by_room
from kernels.entry import ALL_ARCHS, Instance, Kernel, Value, instance
from locks.refusals import REFUSALS, Refusal

#: The baseline and the architecture of the measurements; the others are compiled in the nightly tier, and so is every
#: instantiation of a kernel that has more than MANY (attention, the delta rules).
QUICK_ARCHS = ("sm_80", "sm_90a")

#: Static shared memory that any launch may use; more is dynamic, with an opt-in.
STATIC_SHARED = 48 * 1024

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

#: Float functions of the library, and intrinsics, whose results differ between devices, compilers or releases. Our
#: own exp and log1p are lane::exp and lane::log1p, without the f.
_LIBRARY = re.compile(
    r"\b(?:(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sinh|cosh|tanh|erf|erfc|rsqrt|cbrt|hypot|"
    r"fmax|fmin|fmod|remainder|sincos)f|__(?:exp|exp10|log|log2|log10|pow|sin|cos|tan|sincos)f|"
    r"__f(?:divide|rsqrt|max|min)\w*|__\w*_r[zud]|std::(?:exp|log|pow|max|min|sqrt)|f(?:max|min))\b(?=\s*\()"
)

_ASSERTION = re.compile(r'static_assert\s*\((?:[^;]*?),\s*"((?:[^"\\]|\\.)*)"\s*\)\s*;', re.DOTALL)


#: Instantiations of a kernel of which all are compiled by day: those of the architecture with most of its own paths.
MANY = dict.fromkeys(ALL_ARCHS, 2) | {"sm_90a": 16}


def programs() -> list[object]:
    """(room, architecture) for every room and every architecture that an entry of it names.

    An architecture with "+" behind it is every instantiation, where the quick tier takes a few.
    """
    made = [(room, arch) for room in ROOMS for arch in ALL_ARCHS if instances(room, arch)]
    made += [(room, arch + "+") for room, arch in made if instances(room, arch) != instances(room, arch + "+")]
    return [
        pytest.param(room, arch, marks=() if arch in QUICK_ARCHS else pytest.mark.nightly, id=f"{room}-{arch}")
        for room, arch in made
    ]


def instances(room: str, arch: str) -> tuple[Instance, ...]:
    """Instantiations of a room that the catalogue builds for an architecture; without "+" few of a large kernel."""
    return tuple(
        instance(kernel, **dict(zip((p.name for p in kernel.params), values, strict=True)))
        for kernel in by_room(room)
        if arch.rstrip("+") in kernel.archs
        for values in (every(kernel) if arch.endswith("+") else few(kernel, MANY[arch]))
    )


def every(kernel: Kernel) -> list[tuple[Value, ...]]:
    """All combinations of template values."""
    return list(itertools.product(*(p.values for p in kernel.params)))


def few(kernel: Kernel, many: int) -> list[tuple[Value, ...]]:
    """All combinations if there are at most so many, else as few as show each value, or so many of those."""
    if len(all_values := every(kernel)) <= many:
        return all_values
    longest = max(len(p.values) for p in kernel.params)
    return [tuple(p.values[-1 - i % len(p.values)] for p in kernel.params) for i in range(min(longest, many))]


@functools.cache
def compiled(room: str, arch: str) -> Compiled:
    """The room as one program, or a lock that is not run because this NVRTC does not know the architecture."""
    try:
        return compile_instances(instances(room, arch), arch.rstrip("+"))
    except NotRun as unknown:
        pytest.skip(f"not run: {unknown}")


@pytest.mark.parametrize(("room", "arch"), programs())
class TestProgram:
    """One room compiled for one architecture."""

    def test_every_instantiation_compiles_with_no_defines(self, room: str, arch: str) -> None:
        """Machine code holds every instantiation that the catalogue builds, compiled with the contract's flags only."""
        program = compiled(room, arch)
        built = set(entries(program.ptx))

        assert program.cubin[:4] == b"\x7fELF"
        assert {program.lowered(i.expression) for i in instances(room, arch)} <= built

    def test_resources_stay_within_what_the_entry_states(self, room: str, arch: str) -> None:
        """Registers, stack, spills and static shared memory are at most the entry's limits, and 48 KB at most."""
        over = []
        for inst in instances(room, arch):
            report = compiled(room, arch).report(inst.expression)
            for what, limit in {"smem": STATIC_SHARED, **(inst.kernel.limits or {})}.items():
                if (used := getattr(report, what)) > limit:
                    over.append(f"{inst.expression}: {used} {what}, limit {limit}")

        assert not over, "\n".join(over)  # red: a run-time loop bound that puts an array into local memory

    def test_every_entry_states_its_stack_and_spills(self, room: str, arch: str) -> None:
        """No kernel leaves stack frame and spills unstated, so that none grows one unseen."""
        needed = {"stack", "spills"}
        unstated = {i.kernel.name for i in instances(room, arch) if not needed <= set(i.kernel.limits or {})}

        assert unstated == set()

    def test_exact_kernels_hold_no_instruction_without_a_rounding(self, room: str, arch: str) -> None:
        """No approximate, flushing, unrounded or function instruction, and no float atomic, in any exact kernel."""
        program = compiled(room, arch)
        found = {
            inst.expression: census(program.ptx, program.lowered(inst.expression)).violations
            for inst in instances(room, arch)
            if inst.kernel.exact
        }

        bad = [f"{name}: {'; '.join(says)}" for name, says in found.items() if says]
        assert not bad, "\n".join(bad)  # red: __expf, a missing --fmad=false

    def test_a_kernel_holds_the_instruction_it_is_named_for(self, room: str, arch: str) -> None:
        """A kernel with the name of an instruction family in its own name holds at least one of that family."""
        program = compiled(room, arch)
        missing = [
            f"{inst.kernel.name} without {family}"
            for inst in instances(room, arch)
            for family in families_of(inst.kernel.name)
            if census(program.ptx, program.lowered(inst.expression)).count(family) == 0
        ]

        assert not missing, "\n".join(missing)  # red: the model of an instruction compiled instead of the instruction


def families_of(name: str) -> tuple[str, ...]:
    """Families of instructions that a kernel's name contains as whole words."""
    return tuple(f for f in FAMILIES if f"_{f.replace('.', '_')}_" in f"_{name}_")


class TestSources:
    """What the text of the sources may call."""

    def test_only_the_contracts_functions_are_called(self) -> None:
        """No source names a float function of the library but sqrtf, fmaf, rintf and fabsf."""
        # fmaxf and fminf too: compilers differ on zeros and signalling NaN; PTX has one meaning of max, so the
        # census lets an instruction pass that the compiler made of a comparison
        called = {
            (path.name, name)
            for room in ROOMS
            for path in closure(KERNELS / f"{room}.cu")
            for name in _LIBRARY.findall(_COMMENT.sub(" ", path.read_text()))
        }

        assert called == set()


class TestRefusals:
    """Negative compiles: what a static_assert forbids does not compile."""

    @pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: r.sentence.split(":")[0][:40].replace(" ", "-"))
    def test_the_assertion_fires(self, refusal: Refusal) -> None:
        """The forbidden configuration is refused by the compiler with the sentence of the source."""
        text = (KERNELS / refusal.source).read_text()
        if refusal.edit is not None:
            assert text.count(refusal.edit[0]) == 1, f"{refusal.source} no longer holds {refusal.edit[0]!r} once"
            text = text.replace(*refusal.edit)
        wanted = [refusal.expression] if refusal.expression else []
        with pytest.raises(BuildError, match=re.escape(f'static assertion failed with "{refusal.sentence}"')):
            compiler.compile_source(
                text + refusal.code, refusal.source, wanted, "sm_90a", (f"--include-path={KERNELS}",)
            )

    def test_every_static_assert_has_a_refusal(self) -> None:
        """Each sentence that a static_assert of the catalogue's sources can say has a configuration that makes it."""
        files = {path for room in ROOMS for path in closure(KERNELS / f"{room}.cu") if path.parent == KERNELS}
        sentences = {s for path in files for s in _ASSERTION.findall(path.read_text())}

        unheld = sentences - {r.sentence for r in REFUSALS}
        assert not unheld, "no refusal in locks/refusals.py for:\n" + "\n".join(sorted(unheld))


class TestCensus:
    """The census itself: an instruction that the contract forbids is seen."""

    @pytest.mark.parametrize(
        "opcode",
        [
            "ex2.approx.f32", "ex2.approx.ftz.f32", "rsqrt.approx.f32", "div.full.f32", "add.ftz.f32",
            "add.f32", "mul.f32", "sub.f64", "fma.f32", "mad.f32", "div.f32", "sqrt.f32", "mul.f16x2",
            "atom.global.add.f32", "red.global.add.f64", "atom.shared.add.noftz.f16x2",
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
        ],
    )  # fmt: skip  # a list of opcodes
    def test_a_forbidden_instruction_is_named(self, opcode: str) -> None:
        """Each kind of instruction that the contract forbids gives a sentence that starts with it."""
        assert violation(opcode).startswith(f"{opcode}: ")

    @pytest.mark.parametrize(
        "opcode",
        [
            "add.rn.f32", "mul.rn.f32", "fma.rn.f32", "div.rn.f32", "sqrt.rn.f32", "rcp.rn.f32", "fma.rn.f64",
            "add.s32", "mul.lo.s32", "mad.lo.s32", "mul.wide.u32", "max.s32", "min.u32", "atom.global.add.u32",
            "cvt.rn.f16.f32", "cvt.rni.f32.f32", "setp.gt.f32", "selp.f32", "abs.f32", "neg.f32", "mov.f32", "max.f32",
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "ld.global.f32", "st.shared.f32", "dp4a.s32.s32",
        ],
    )  # fmt: skip  # a list of opcodes
    def test_an_allowed_instruction_is_not(self, opcode: str) -> None:
        """Rounded float arithmetic, integers, moves, selections and integer tensor cores are allowed."""
        assert violation(opcode) == ""

    def test_planted_faults_are_found_in_compiled_code(self) -> None:
        """A fast exponential, an atomic sum and an approximate quotient in a called function are found by name."""
        source = (
            "__device__ __noinline__ float outside(float x) { return __fdividef(x, 3.0f); }\n"
            'extern "C" __global__ void planted(float* y) {\n'
            "  y[3] = __expf(y[4]); atomicAdd(y, 1.0f); y[5] = outside(y[6]);\n"
            "}\n"
        )
        ptx = compiler.compile_source(source, "planted.cu", ["planted"], "sm_90a").ptx
        found = " ".join(census(ptx, "planted").violations)

        assert all(name in found for name in ("ex2.approx", "atom.", "div.approx"))

    def test_a_census_of_no_kernel_is_an_error(self) -> None:
        """Asking for an entry that the PTX does not hold raises, so that an empty count never passes."""
        with pytest.raises(KeyError):
            census(".visible .entry a() { ret; }", "b")

    def test_predicates_labels_and_comments_are_read_past(self) -> None:
        """The opcode of a predicated, labelled or commented instruction is found; declarations are none."""
        body = ".reg .f32 %f<3>; $L__BB0_1: @%p1 add.rn.f32 %f1, %f2, %f1; @!%p2 bra.uni $L__BB0_1; ret;"

        assert list(opcodes(body)) == ["add.rn.f32", "bra.uni", "ret"]
