"""Where the guards of a device buffer lie, and what a changed guard says."""

import numpy as np

from harness.device import Memory, OutOfBounds

#: Bytes before and behind every buffer that no kernel may write. A page: strays are mostly near, and 8 KiB a buffer
#: is small beside the buffers of a model.
GUARD = 4096

#: What a guard holds. Not the poison of a buffer (0xFF), so that a stray copy of poison shows.
GUARD_BYTE = 0xA5

#: Names what is left out for a memory checker that watches this process: `guards`, or `guards,poison`. A stray into a
#: guard is no stray to it, and poisoned memory is set.
WATCHED = "LANELOCK_WATCHED"

#: Alignment that the driver gives every allocation.
DRIVER_ALIGN = 256


def footprint(nbytes: int, align: int) -> int:
    """Bytes to ask of the driver for a guarded buffer."""
    return align_up(GUARD, max(align, DRIVER_ALIGN)) + max(align, DRIVER_ALIGN) + nbytes + GUARD


def place(base: int, align: int) -> int:
    """The first byte of the caller inside an allocation: behind the guard, aligned."""
    return align_up(base + GUARD, max(align, DRIVER_ALIGN))


def align_up(value: int, align: int) -> int:
    """The next multiple."""
    return -(-value // align) * align


def guards(memory: Memory) -> tuple[tuple[int, int], tuple[int, int]]:
    """(address, byte offset from the buffer's start) of the guard before and of the one behind."""
    return (memory.address - GUARD, -GUARD), (memory.address + memory.nbytes, memory.nbytes)


def check_guard(memory: Memory, offset: int, contents: np.ndarray, who: str) -> None:
    """Raise OutOfBounds, naming buffer and byte offset, if a guard's bytes changed; `who` names the kernels."""
    changed = np.flatnonzero(contents != GUARD_BYTE)
    if changed.size == 0:
        return
    # report the byte nearest to the buffer: that is where the stray began
    nearest = int(changed[-1] if offset < 0 else changed[0]) + offset
    side = "before its start" if offset < 0 else "behind its end"
    raise OutOfBounds(
        f"{who} wrote {changed.size} byte(s) outside buffer {memory.name} of {memory.nbytes} bytes, "
        f"at byte {nearest}, {side}"
    )
