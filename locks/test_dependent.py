"""Kernels that start while the launch ahead of them ends: they wait, and read only constants before they have."""

import pytest

from harness.ptx import entries, touched_before_wait
from kernels.catalogue import KERNELS, ROOMS
from kernels.lanes import lane
from kernels.lowering import Machine
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import Tuning
from locks.models import CONFIG
from locks.test_compile import compiled, instances

ARCH = "sm_90a"  # the baseline that has dependent launches
DEPENDENT = [room for room in ROOMS if any(i.kernel.dependent for i in instances(room, ARCH))]

SKETCH = """
 ld.param.u64 %rd1, [k_param_0];
 ld.param.u64 %rd2, [k_param_1];
 ld.param.u32 %r1, [k_param_2];
 cvta.to.global.u64 %rd3, %rd2;
 mul.wide.s32 %rd4, %r1, 4;
 add.s64 %rd5, %rd3, %rd4;
 @%p1 ld.global.nc.v4.u32 {%r2, %r3, %r4, %r5}, [%rd5+16];
 st.shared.u32 [%r9], %r2;
 griddepcontrol.wait;
 ld.global.u32 %r6, [%rd1];
"""


class TestWaiting:
    """Machine code of every kernel whose entry says that it waits by itself."""

    @pytest.mark.parametrize("room", DEPENDENT)
    def test_touches_nothing_but_constants_before_the_wait(self, room: str) -> None:
        """Each waits, and what it touches before is what its entry names as early, all of it read alone.

        Red: a residual loaded before the launch that writes it has ended: right most of the time; a kernel that
        never waits.
        """
        for inst in instances(room, ARCH):
            program = compiled(room, ARCH)
            if not inst.kernel.dependent:
                continue
            touched = touched_before_wait(entries(program.ptx)[program.lowered(inst.expression)])
            assert {inst.kernel.args[i].name for i in touched} == set(inst.kernel.early), inst.expression
            assert all(b.access == "r" for b in inst.kernel.buffers if b.name in inst.kernel.early)

    def test_kernels_are_found(self) -> None:
        """Most rooms of a step have one. Red: a filter that leaves nothing to look at."""
        assert len(DEPENDENT) >= 12
        assert {k.name for k in KERNELS if k.early} >= {"projection_f32", "add_rms_norm_spread_planes"}


class TestReading:
    """What is read out of PTX."""

    def test_a_load_ahead_of_the_wait_is_traced_to_its_parameter(self) -> None:
        """An address computed from parameter 1 ahead of the wait is found, one behind it or in shared memory is not."""
        assert touched_before_wait(SKETCH) == {1}

    @pytest.mark.parametrize("line", [
        "st.global.u32 [%rd1], %r1;", "cp.async.cg.shared.global [%r9], [%rd1], 16;", "red.global.add.u32 [%rd1], 1;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%rd1], %r1, [%r8];",
    ])  # fmt: skip
    def test_every_access_counts(self, line: str) -> None:
        """Stores, copies and atomics count like loads. Red: an opcode left out."""
        assert touched_before_wait(SKETCH.replace(" griddep", f" {line}\n griddep", 1)) == {0, 1}

    def test_a_prefetch_into_the_common_cache_reads_nothing(self) -> None:
        """One into the second-level cache, where writes meet, is no access; one into the first is. Red: both let by."""
        found = [
            touched_before_wait(SKETCH.replace(" griddep", f" prefetch.global.{level} [%rd1];\n griddep", 1))
            for level in ("L2", "L1")
        ]

        assert found == [{1}, {0, 1}]

    @pytest.mark.parametrize("wait", [
        "@%p2 bra $L1; griddepcontrol.wait; $L1:", "@%p2 griddepcontrol.wait;",
        "@%p2 bra $L1; bra.uni $L2; $L1: griddepcontrol.wait; $L2:",
    ])  # fmt: skip
    def test_a_way_past_the_wait_is_found(self, wait: str) -> None:
        """Where only some threads wait, what the others touch is touched early. Red: the order of the text taken."""
        assert touched_before_wait(SKETCH.replace("griddepcontrol.wait;", wait)) == {0, 1}

    def test_a_block_that_the_text_puts_behind_the_wait_is_found(self) -> None:
        """A jump there and back before the wait. Red: only what stands ahead of it looked at."""
        sketch = SKETCH.replace(" griddep", " bra.uni $L2;\n $L1:\n griddep", 1)

        assert touched_before_wait(sketch + " ret;\n $L2:\n st.global.u32 [%rd1], %r1;\n bra.uni $L1;\n") == {0, 1}

    def test_a_kernel_that_does_not_wait_is_an_error(self) -> None:
        """Red: an empty answer that passes."""
        with pytest.raises(KeyError, match="does not wait"):
            touched_before_wait(SKETCH.replace("griddepcontrol.wait;", ""))


class TestPlan:
    """Plans of an H200."""

    @pytest.mark.parametrize(("B", "drafts"), [(1, 0), (3, 2), (40, 1)])
    def test_no_launch_writes_what_is_read_early(self, B: int, drafts: int) -> None:
        """Buffers bound to early arguments are weights that only loading writes. Red: a normed row read early."""
        setting = Setting(CONFIG, lane("a8"), B, B, 64, Machine(ARCH, 132, 232448), Tuning())
        plan = make_plan(setting, 16, drafts)
        running = [item for name, items in plan.programs.items() if not name.startswith("load.") for item in items]
        written = {name for item in running for name in item.writes}
        early = {u.ref.buffer for i in running for u in i.uses if u.argument in i.instance.kernel.early}

        assert early
        assert not early & written
