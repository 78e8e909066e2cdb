"""Locks over rooms: no bit of a sequence depends on how many others run beside it (handed case 18).

Projections are held by the same kind of lock in their own room, where a lowering may choose its form by the rows.
"""

from collections.abc import Callable

import numpy as np
import pytest

from harness.device import Device
from kernels.attention import (
    ATTENTION_SPLIT,
)
from kernels.attention_combine import ATTENTION_COMBINE, ATTENTION_COMBINE_FAR
from kernels.attention_prefill import PREFILL_SPLIT
from kernels.catalogue import KERNELS
from kernels.entry import Kernel
from locks import test_attention, test_conv, test_delta_chunk, test_delta_rule, test_gated_norm, test_gates
from locks import test_projection_f32 as small_projection
from locks import test_qk_norm_rope as rope
from locks.sequences import assert_same_sequence, placed, sequences
from locks.support import Case, assert_same_outputs, normal, rng

BATCHES = (2, 3, 4, 5, 8, 9, 16, 17, 33)
MOST = max(BATCHES)
#: Where sequence 0 stands; the others stand anywhere before 40, and have 1 to 3 new tokens.
CONTEXTS = [1, 127, 128, pytest.param(4096, marks=pytest.mark.full)]
LENGTHS = tuple(1 + b % 3 for b in range(MOST))
OTHERS = tuple(b * 7 % 40 for b in range(1, MOST))


def positions(context: int) -> tuple[int, ...]:
    """Positions of all sequences: the first new token of sequence 0 sees so many, itself among them."""
    return (context - 1, *OTHERS)


def attention_case(context: int) -> Case:
    """Two query heads that share a KV head, in one block."""
    return test_attention.problem(18, 32, positions(context), LENGTHS).case(2)


def prefill_case(context: int) -> Case:
    """The same by a warp a head."""
    return test_attention.problem(18, 32, positions(context), LENGTHS).prefill(2, 2)


def cluster_case(context: int) -> Case:
    """The same by a cluster with a block a chunk."""
    problem = test_attention.problem(18, 32, positions(context), LENGTHS)
    return problem.clustered(max(2, -(-(context + max(LENGTHS)) // 256)), 2)


def split_case(whole: Case, kernel: Kernel) -> Case:
    """A case by two blocks along the context, which leave the parts of chunks."""
    inputs = {name: value for name, value in whole.inputs.items() if name not in ("parts", "summaries")}
    return Case(kernel, {**whole.dims, "blocks": 2}, {**inputs, "out": None}, whole.template)


def teams_case(context: int) -> Case:
    """The same by teams of one block."""
    return test_attention.problem(18, 32, positions(context), LENGTHS).teamed(2)


def combine_case(context: int, kernel: Kernel = ATTENTION_COMBINE) -> Case:
    """Any parts of chunks, combined."""
    T, chunks, g = max(LENGTHS), -(-(context + max(LENGTHS)) // 256), rng(18, context)
    parts = {"parts": normal(g, T * MOST, 2, chunks, 32), "summaries": np.abs(normal(g, T * MOST, 2, chunks, 2))}
    dims = {"T": T, "B": MOST, "slots": MOST + 1, "HQ": 2, "chunks": chunks}
    where = placed(range(MOST, 0, -1), positions(context), LENGTHS)
    template = {"D": 32} | ({"LONG": False} if kernel is ATTENTION_COMBINE else {})
    return Case(kernel, dims, {**parts, **where}, template)


def staged_case(context: int) -> Case:
    """The scan with keys in shared memory."""
    return test_delta_rule.staged_form(test_delta_rule.random_case(18, 32, positions(context), LENGTHS))


#: Kernel -> 33 sequences of which the first stands at a context.
SEQUENCES: dict[str, Callable[[int], Case]] = {
    "attention": attention_case,
    "attention_split": lambda context: split_case(attention_case(context), ATTENTION_SPLIT),
    "attention_cluster": lambda context: cluster_case(min(context, 1500)),
    "attention_prefill": prefill_case,
    "attention_prefill_split": lambda context: split_case(prefill_case(context), PREFILL_SPLIT),
    "attention_teams": teams_case,
    "attention_combine": combine_case,
    "attention_combine_far": lambda context: combine_case(context, ATTENTION_COMBINE_FAR),
    "conv": lambda context: test_conv.random_case(18, 32, positions(context), LENGTHS),
    "delta_chunk": lambda context: test_delta_chunk.problem(18, 32, positions(context), LENGTHS, T=4).case(4),
    "delta_rule": lambda context: test_delta_rule.random_case(18, 32, positions(context), LENGTHS),
    "delta_rule_staged": staged_case,
    "qk_norm_rope": lambda context: rope.random_case(18, 32, positions(context), LENGTHS),
}
#: Kernel -> 33 rows.
ROWS: dict[str, Callable[[], Case]] = {
    "gated_norm_quantize": lambda: test_gated_norm.random_case(18, 64, rows=MOST),
    "gates": lambda: test_gates.random_case(18, MOST, 5),
    "projection_f32": lambda: small_projection.case_of(*small_projection.inputs(18, MOST, 6, 288), 8),
}
ROOMS = {
    "attention", "attention_combine", "attention_prefill", "conv", "delta_chunk", "delta_rule", "gated_norm", "gates",
    "projection_f32", "qk_norm_rope",
}  # fmt: skip  # a list of names


class TestBatchSizes:
    """The first of a batch has the bits that it has alone."""

    def test_every_kernel_of_these_rooms_is_here(self) -> None:
        """Attention, Gated DeltaNet and what surrounds them. Red: a new form of one that no batch size was tried on."""
        assert {*SEQUENCES, *ROWS} == {k.name for k in KERNELS if k.room in ROOMS}

    @pytest.mark.parametrize("context", CONTEXTS)
    @pytest.mark.parametrize("name", SEQUENCES)
    def test_a_sequence_has_the_bits_that_it_has_alone(self, device: Device, name: str, context: int) -> None:
        """Sequence 0 of 2 to 33, at contexts about a half and a whole chunk. Red: a block that counts the batch."""
        case = SEQUENCES[name](context)
        alone = sequences(case, [0])
        expected = alone.run(device)
        for n in BATCHES:
            batch = sequences(case, range(n))
            assert_same_sequence((batch, batch.run(device), 0), (alone, expected, 0))

    @pytest.mark.parametrize("name", ROWS)
    def test_a_row_has_the_bits_that_it_has_alone(self, device: Device, name: str) -> None:
        """Row 0 of 2 to 33. Red: a form chosen by the number of rows."""
        case = ROWS[name]()
        expected = case.take([0]).run(device)
        for n in BATCHES:
            batch = case.take(range(n))
            assert_same_outputs(batch.row_of(batch.run(device), 0), expected)
