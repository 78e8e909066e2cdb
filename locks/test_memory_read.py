"""Locks of the read and the update that streaming kernels are measured against: every word, once."""

import numpy as np
import pytest

from harness.device import Device
from kernels.memory_read import MEMORY_READ, MEMORY_UPDATE
from locks.support import Case, assert_same_bits, rng
from oracle.bits.memory_read import memory_read as contract
from oracle.memory_read import memory_read as truth
from oracle.memory_read import memory_update


def case(vectors: int, blocks: int) -> Case:
    """Random words."""
    x = rng(vectors, blocks).integers(0, 2**32, (vectors, 4), dtype=np.uint32)
    return Case(MEMORY_READ, {"vectors": vectors, "blocks": blocks}, {"x": x})


@pytest.mark.verify
@pytest.mark.parametrize(("vectors", "blocks"), [(1, 1), (1, 3), (511, 1), (5000, 1), (5000, 2), (20011, 3)])
class TestMemoryRead:
    """Every word of the buffer is in exactly one block's xor."""

    def test_is_the_xor_of_all_words(self, device: Device, vectors: int, blocks: int) -> None:
        """The blocks' words add up to the buffer's. Red: the last vectors skipped, one read twice."""
        c = case(vectors, blocks)

        assert truth(c.run(device)["y"]) == truth(c.inputs["x"])

    def test_blocks_own_their_vectors(self, device: Device, vectors: int, blocks: int) -> None:
        """Each block's word is the xor of its own vectors. Red: a vector that two blocks read and a third does not."""
        c = case(vectors, blocks)

        assert_same_bits(c.run(device)["y"], contract(c.inputs["x"], blocks))

    def test_update_complements_every_word(self, device: Device, vectors: int, blocks: int) -> None:
        """Every word is replaced by its complement, none twice. Red: the last vectors left as they were."""
        c = case(vectors, blocks)
        updated = Case(MEMORY_UPDATE, c.dims, c.inputs).run(device)["x"]

        assert_same_bits(updated, memory_update(c.inputs["x"]))
