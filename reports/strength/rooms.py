"""Which files belong to a room, and which lock files hold it.

The rule is the stem: kernels/rms_norm.cu, kernels/rms_norm.py and oracle/bits/rms_norm.py are held by
locks/test_rms_norm.py. SPECIAL lists the rooms that are more than a stem: shared sources are held by the locks of the
rooms that use them, and the oracle by locks that need no kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from oracle.errors import LanelockError


@dataclass(frozen=True, slots=True)
class Room:
    """Files (patterns relative to the root) and the lock files that hold them, the likeliest killer first."""

    name: str
    files: tuple[str, ...]
    locks: tuple[str, ...]


_ORACLE = "locks/oracle/test_"


def _oracle(name: str, files: str, locks: str) -> Room:
    """An oracle room: files and lock files by stem."""
    return Room(
        f"oracle.{name}",
        tuple(f"oracle/{f}.py" for f in files.split()),
        tuple(f"{_ORACLE}{lock}.py" for lock in locks.split()),
    )


SPECIAL: tuple[Room, ...] = (
    Room(
        "plan",
        ("kernels/plan.py", "kernels/programs.py", "kernels/steps.py", "kernels/storage.py", "kernels/lanes.py"),
        ("locks/test_plan.py", "locks/test_decode.py"),
    ),
    Room(
        "engine",
        ("harness/engine/*.py",),
        ("locks/test_decode.py", "locks/test_any_decode.py", "locks/test_plan.py"),
    ),
    Room(
        "accuracy",
        ("oracle/error_bound.py", "harness/observed.py"),
        ("locks/test_accuracy.py",),
    ),
    Room(
        "report",
        ("reports/accuracy*.py", "reports/plot.py", "harness/cli/report.py"),
        ("locks/test_report.py",),
    ),
    Room("state_drift", ("reports/state_drift.py",), ("locks/test_state_drift.py",)),
    Room(
        "golden",
        ("golden/stream.py", "golden/record.py", "golden/check.py", "harness/cli/golden.py"),
        ("locks/test_golden.py",),
    ),
    Room("verify", ("harness/cli/verify.py",), ("locks/test_verify.py",)),
    Room(
        "plan_floor",
        ("reports/plan_floor.py", "harness/cli/plan.py"),
        ("locks/test_plan.py", "locks/test_bisect.py"),
    ),
    Room(
        "options",
        ("harness/cli/numbers.py", "harness/cli/output.py"),
        ("locks/test_options.py", "locks/test_outputs.py", "locks/test_weight_commands.py"),
    ),
    Room("sanitize", ("reports/sanitizer.py", "harness/cli/sanitize.py"), ("locks/test_sanitize.py",)),
    Room("emit", ("harness/emit/*.py",), ("locks/test_emit.py",)),
    Room("bisect", ("harness/bisect.py", "harness/commits.py", "harness/trace.py"), ("locks/test_bisect.py",)),
    Room(
        "codes",
        ("kernels/codes.cuh",),
        ("locks/test_quantize.py", "locks/test_rms_norm.py", "locks/test_swiglu.py", "locks/test_add.py"),
    ),
    Room(
        "rms_norm",
        ("kernels/rms_norm.cu", "kernels/row_norm.cuh", "kernels/rms_norm.py", "oracle/bits/rms_norm.py"),
        ("locks/test_rms_norm.py",),
    ),
    Room(
        "rules",
        ("kernels/rules.py", "kernels/entry.py"),
        ("locks/test_rules.py", "locks/test_quantize.py", "locks/test_rms_norm.py"),
    ),
    Room(
        "gemm_wg",
        ("kernels/gemm_wg.*",),
        ("locks/test_hopper.py", "locks/test_projection_ring.py", "locks/test_projection.py"),
    ),
    Room(
        "projection",
        (
            "kernels/gem*",
            "kernels/projection*.cuh",
            "kernels/projections.py",
            "oracle/bits/projection.py",
        ),
        ("locks/test_projection.py", "locks/test_projection_ring.py"),
    ),
    Room(
        "attention",
        ("kernels/attention*", "oracle/bits/attention.py"),
        ("locks/test_attention.py", "locks/test_state_traffic.py", "locks/test_batch_sizes.py"),
    ),
    Room("lowering", ("kernels/lowering.py", "kernels/tuning.py"), ("locks/test_lowering.py",)),
    Room(
        "checkers",
        ("harness/run.py", "locks/support.py", "locks/conftest.py", "reports/lock_results.py"),
        ("locks/test_checkers.py", "locks/test_report.py"),
    ),
    Room(
        "head",
        ("kernels/head.cuh",),
        ("locks/test_gated_norm.py", "locks/test_qk_norm_rope.py", "locks/test_conv.py"),
    ),
    Room(
        "hopper",
        (
            "harness/host/runtime/bulk.cpp",
            "harness/host/runtime/copies.cpp",
            "harness/host/runtime/wgmma.cpp",
            "harness/host/runtime/hopper.h",
            "kernels/hopper.cuh",
        ),
        (
            "locks/test_hopper.py",
            "locks/test_host_device.py",
            "locks/test_projection_ring.py",
            "locks/test_projection.py",
        ),
    ),
    Room(
        "host_device",
        ("harness/host/*.py", "harness/host/runtime/*", "kernels/device.cuh"),
        ("locks/test_host_device.py", "locks/test_primitives.py", "locks/test_quantize.py", "locks/test_functions.py"),
    ),
    _oracle("functions", "functions", "functions"),
    _oracle(
        "pointwise",
        "add gate_mul gated_norm gates quantize rms_norm swiglu embedding positions greedy",
        "pointwise greedy",
    ),
    _oracle("formats", "formats/*", "formats half half_state"),
    _oracle("conv", "conv", "conv pointwise"),
    _oracle("delta_rule", "delta_rule", "delta_rule half_state"),
    _oracle("attention", "attention", "attention"),
    _oracle("rope", "rope qk_norm_rope", "rope qk_norm_rope"),
    _oracle(
        "model",
        "model blocks state mtp decode lane projection model_weights config",
        "config lane projection model reference mtp decode state",
    ),
    _oracle("roundings", "roundings", "roundings"),
    _oracle("weights", "weights/*", "weights* mapping_faults"),
)

#: Stems -> the stems of their lock files, where several files are one operation.
_RINGS = "projection projection_ring"
FAMILIES = (("gemm*", _RINGS), ("gemv*", "projection"), ("stream_units", f"stream_units {_RINGS}"),
            ("streaming", f"stream_units lowering {_RINGS}"), ("stream_*", f"{_RINGS} hopper compile stream_units"),
            ("projection_stream", f"{_RINGS} columns hopper compile stream_units"), ("projection_tile", "projection"),
            ("delta_rule", "delta_rule state_traffic batch_sizes"),
            ("delta_chunk", "delta_chunk delta_rule state_traffic batch_sizes"))  # fmt: skip

#: What the source of a room may say -> the lock file that holds all who do: waiting for the launch ahead by itself,
#: which is read in the machine code, and codes written by columns.
_SAID = {
    "locks/test_dependent.py": ("overlap_launches", "await_launches_before"),
    "locks/test_columns.py": ("int columns",),
}

#: Folders whose files form stem rooms.
STEM_FOLDERS = ("kernels", "oracle", "oracle/bits")
SOURCES = (".cu", ".cuh", ".py", ".cpp", ".hpp", ".h")


def room_of(file: str) -> str:
    """The room of a source file: a special room that lists it, else its stem."""
    for room in SPECIAL:
        if any(fnmatch(file, pattern) for pattern in room.files):
            return room.name
    return PurePosixPath(file).stem.removeprefix("test_")


def locks_of(room: str, root: Path) -> tuple[str, ...]:
    """The lock files of a room that exist. Raises LanelockError if there is none."""
    named = next((r.locks for r in SPECIAL if r.name == room), ())
    family = next((lock for pattern, lock in FAMILIES if fnmatch(room, pattern)), room)
    wanted = named or tuple(f"locks/test_{stem}.py" for stem in family.split())
    wanted = (*dict.fromkeys((*wanted, *locks_by_words(root / "kernels" / f"{room}.cu"))),)
    found = tuple(p.relative_to(root).as_posix() for pattern in wanted for p in sorted(root.glob(pattern)))
    if not found:
        raise LanelockError(f"room {room} has no lock file; looked for {', '.join(wanted)}")
    return found


def locks_by_words(source: Path) -> tuple[str, ...]:
    """The lock files that hold every source that says what this one does."""
    text = source.read_text() if source.exists() else ""
    return tuple(lock for lock, words in _SAID.items() if any(word in text for word in words))


def all_rooms(root: Path) -> list[str]:
    """Rooms that have both sources and a lock file, special ones first."""
    names = [r.name for r in SPECIAL if any(sources_of(r.name, root)) and _has_locks(r.name, root)]
    for folder in STEM_FOLDERS:
        for path in sorted((root / folder).glob("*")):
            name = room_of(path.relative_to(root).as_posix())
            if path.suffix in SOURCES and name not in names and _has_locks(name, root):
                names.append(name)
    return names


def sources_of(room: str, root: Path) -> Iterator[str]:
    """Source files of a room, relative to the root, sorted."""
    special = next((r for r in SPECIAL if r.name == room), None)
    patterns = special.files if special else tuple(f"{f}/{room}{s}" for f in STEM_FOLDERS for s in SOURCES)
    found = {p.relative_to(root).as_posix() for pattern in patterns for p in root.glob(pattern) if p.is_file()}
    yield from sorted(f for f in found if room_of(f) == room)


def _has_locks(room: str, root: Path) -> bool:
    try:
        return bool(locks_of(room, root))
    except LanelockError:
        return False
