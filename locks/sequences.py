"""What locks of kernels with a per-sequence state share: batches taken apart, permuted, moved to other slots, poisoned.

Rows of a chunk lie token-major, row t * B + b. A buffer is recognised by the dims its entry names: `rows` comes with
the tokens of each sequence, `B` with one element a sequence, `slots` is a pool that sequences share.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.device import Device
from harness.run import GAP
from kernels.entry import Buffer
from locks.support import Arrays, Case, assert_same_bits, assert_same_outputs, assert_stored_once


def placed(slots: Sequence[int], positions: Sequence[int], lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """The three arguments that say where each sequence stands."""
    named = {"slot": slots, "position": positions, "length": lengths}
    return {name: np.array(values, np.int32) for name, values in named.items()}


def token_major(x: np.ndarray) -> np.ndarray:
    """Sequences [B, T, ...] as rows [T * B, ...]."""
    return np.ascontiguousarray(np.swapaxes(x, 0, 1)).reshape(-1, *x.shape[2:])


def by_sequence(rows: np.ndarray, B: int) -> np.ndarray:
    """Rows [T * B, ...] as sequences [B, T, ...]."""
    return np.swapaxes(rows.reshape(-1, B, *rows.shape[1:]), 0, 1)


def sequences(case: Case, order: Sequence[int]) -> Case:
    """These sequences of a case alone, in this order; pools stay whole."""
    index, B = list(order), int(case.dims["B"])
    inputs = {}
    for name, value in case.inputs.items():
        axis = "" if value is None else _axis(case, name)
        if axis == "rows":
            inputs[name] = token_major(by_sequence(value, B)[index])
        else:
            inputs[name] = np.ascontiguousarray(value[index]) if axis == "B" else value
    return replace(case, inputs=inputs, dims={**case.dims, "B": len(index)})


def of_sequence(case: Case, outputs: Arrays, b: int) -> dict[str, np.ndarray]:
    """What belongs to sequence b: its existing rows of every token buffer, and its slot of every pool."""
    B, slot, length = int(case.dims["B"]), int(case.inputs["slot"][b]), int(case.inputs["length"][b])
    own = {}
    for name, value in outputs.items():
        axis = _axis(case, name)
        own[name] = by_sequence(value, B)[b, :length] if axis == "rows" else value[slot]
    return own


def assert_same_sequence(one: tuple[Case, Arrays, int], other: tuple[Case, Arrays, int]) -> None:
    """A sequence of one run has the bits of a sequence of another: its rows and its slot."""
    assert_same_outputs(of_sequence(*one), of_sequence(*other))


def assert_sequences_stand_alone(device: Device, case: Case) -> None:
    """A sequence's bits are its own: alone, in any place of the batch, in any slot, among neighbours full of NaN.

    What no sequence owns stays as it was: rows behind a length, and slots that nobody holds. No byte is stored twice.
    """
    B = int(case.dims["B"])
    together = case.run(device)
    assert_stored_once(device, case)
    # not over poison: what is computed from poison may be its very bits
    assert_rest_is_untouched(case, case.prefilled(GAP).run(device))
    turned = sequences(case, range(B - 1, -1, -1))
    backwards = turned.run(device)
    moved, at_home = in_other_slots(case), case
    elsewhere = moved.run(device)
    for b in range(B):
        if case.inputs["slot"][b] < 0 or case.inputs["length"][b] <= 0:
            continue
        alone = sequences(case, [b])
        assert_same_sequence((at_home, together, b), (alone, alone.run(device), 0))
        assert_same_sequence((at_home, together, b), (turned, backwards, B - 1 - b))
        assert_same_sequence((at_home, together, b), (moved, elsewhere, b))
        among = poisoned_around(case, b)
        assert_same_sequence((at_home, together, b), (among, among.run(device), b))


def assert_rest_is_untouched(case: Case, outputs: Arrays) -> None:
    """Rows that do not exist keep what they held, and slots that no live sequence holds keep their bytes."""
    B, slot, length = int(case.dims["B"]), case.inputs["slot"], case.inputs["length"]
    held = {int(s) for s, n in zip(slot, length, strict=True) if s >= 0 and n > 0}
    for name, value in outputs.items():
        if _axis(case, name) == "rows":
            for b, rows in enumerate(by_sequence(value, B)):
                absent = np.ascontiguousarray(rows[int(length[b]) if slot[b] >= 0 else 0 :])
                assert (absent.view(np.uint8) == GAP).all(), f"{name}: a row of sequence {b} that does not exist"
        elif _axis(case, name) == "slots":
            free = [s for s in range(len(value)) if s not in held]
            if free:
                assert_same_bits(value[free], case.inputs[name][free], f"{name}, slots that nobody holds")


def in_other_slots(case: Case) -> Case:
    """The same with every sequence one slot further on, and the pools with it."""
    slots = int(case.dims["slots"])
    inputs = {}
    for name, value in case.inputs.items():
        pool = value is not None and _axis(case, name) == "slots"
        inputs[name] = np.roll(value, 1, axis=0) if pool else value
    slot = case.inputs["slot"]
    return replace(case, inputs={**inputs, "slot": np.where(slot < 0, slot, (slot + 1) % slots).astype(np.int32)})


def poisoned_around(case: Case, b: int) -> Case:
    """Every float that is not sequence b's is NaN: tokens of the others, and all other slots."""
    B, slot = int(case.dims["B"]), int(case.inputs["slot"][b])
    inputs = {}
    for name, value in case.inputs.items():
        axis = _axis(case, name)
        inputs[name] = value
        if value is None or value.dtype.kind != "f" or axis == "":
            continue
        if axis == "rows":
            rows = np.full_like(by_sequence(value, B), np.nan)
            rows[b] = by_sequence(value, B)[b]
            inputs[name] = token_major(rows)
        else:
            own = b if axis == "B" else slot
            inputs[name] = np.full_like(value, np.nan)
            inputs[name][own] = value[own]
    return replace(case, inputs=inputs)


def _axis(case: Case, name: str) -> str:
    shape = _buffer(case, name).shape
    return str(shape[0]) if shape and shape[0] in ("rows", "B", "slots") else ""


def _buffer(case: Case, name: str) -> Buffer:
    return next(b for b in case.kernel.buffers if b.name == name)
