"""The 27B shape from synthetic weights: what one H200 holds, decoded in every exact lane, and held to host and oracle.

All but the checks of the tools themselves are of the nightly tier: `--tier nightly --shapes full --device all`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from golden.sources import LANES
from harness.device import Device, Properties
from harness.devices import open_device
from harness.engine import Choice, Engine, Request, decode, opened
from kernels.lowering import Machine
from locks.parts import Job, differences, differing, recorded
from locks.support import assert_same_bits
from oracle.config import preset
from oracle.weights import load

SEED = "synthetic:1"
MODEL = preset("qwen3.8-27b")
PROMPT, COUNT = 512, 128
H200 = Machine("sm_90a", 132, 227 << 10)


def requests(B: int, vocab: int = MODEL.vocab) -> list[Request]:
    """A prompt a sequence; sequence b has the same one in every batch."""
    prompts = (np.random.default_rng([1, b]).integers(0, vocab, PROMPT) for b in range(B))
    return [Request(tuple(int(t) for t in p), COUNT) for p in prompts]


@contextmanager
def engine(device: Device, choice: Choice) -> Iterator[Engine]:
    """An engine over the model."""
    with opened(device, load(SEED, MODEL), choice) as e:
        yield e


def decoded(
    device: Device, lane: str, B: int, chunk: int = PROMPT, drafts: int = 0
) -> tuple[list[list[int]], np.ndarray]:
    """Streams of the first B prompts, and the first one's last logits (those of a step without drafts)."""
    with engine(device, Choice(lane, B, PROMPT + COUNT, chunk, drafts, graphs=True)) as e:
        streams = decode(e, requests(B))
        logits = e.read("logits")[: MODEL.vocab].copy()
    assert [s.stopped for s in streams] == ["count"] * B
    return [s.tokens for s in streams], logits


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.full
class TestStreams:
    """512 tokens in, 128 out."""

    @pytest.mark.parametrize("lane", LANES)
    def test_are_those_of_each_prompt_alone_in_any_batch_chunk_and_with_drafts(self, device: Device, lane: str) -> None:
        """B = 1, 8 and 32, chunks of 512 and 192, two drafts a step: one stream a prompt, and the last logits' bits.

        Red: a tile narrower than the batch, a split sized for another, a chunk's tail, a state of another row.
        """
        tokens, logits = decoded(device, lane, 32)
        eight, of_eight = decoded(device, lane, 8)
        one, of_one = decoded(device, lane, 1)
        drafted, _ = decoded(device, lane, 1, chunk=192, drafts=2)

        assert eight == tokens[:8]
        assert one == drafted == tokens[:1]
        assert len(set(one[0])) > COUNT // 8, "a stream of few tokens shows little"
        assert_same_bits(of_eight, logits)
        assert_same_bits(of_one, logits)


def machine(p: Properties) -> Machine:
    """What a plan is made for on a device."""
    return Machine(p.arch, p.multiprocessors, p.shared_per_block)


class TestHostAndGpu:
    """Every buffer of every launch."""

    @pytest.mark.gpu
    @pytest.mark.nightly
    @pytest.mark.full
    @pytest.mark.parametrize("lane", ["a8", "a15", "q4+s16+kv16"])
    def test_agree_for_a_prompt_and_a_step_of_the_full_model(
        self, both_devices: tuple[Device, Device], lane: str, tmp_path: Path
    ) -> None:
        """Four tokens, a draft and its verify: the host runs every part from what the GPU had before it.

        Red: one bit of one buffer that any launch of the full model writes differently.
        """
        _, gpu = both_devices
        job = Job(SEED, MODEL, Choice(lane, 1, 8, 4, 1), machine(gpu.properties), tmp_path)
        tokens, pieces = recorded(gpu, job, [Request((1, 2, 3, 4), 2)])

        assert len(tokens[0]) == 2
        assert len(pieces) >= 2 * (MODEL.layers + 2)
        assert differences(job, pieces, os.cpu_count() or 1) == []

    def test_part_by_part_sees_what_a_whole_run_sees(self, tmp_path: Path) -> None:
        """The tool itself, host against host: all parts agree, and another weight shows at its first launch.

        Red: a digest of too little, a piece that is not run, a buffer that is not restored.
        """
        job = Job("synthetic:3", preset("tiny"), Choice("a8", 1, 8, 4, 1), H200, tmp_path)
        _, pieces = recorded(open_device("host"), job, [Request((1, 2, 3, 4), 3)])
        parts = {p.part for p in pieces}
        by_part = {part: [p for p in pieces if p.part == part] for part in parts}

        assert parts == {"around", "head", "mtp", *(f"layers.{i}" for i in range(4))}
        assert [differing(job, p) for p in by_part.values()] == [[]] * len(parts)
        first = differing(job, by_part["layers.2"], changed="w.layers.2.Wo.panels")[0]
        assert first == "prefill.first, launch layers.2.Wo (projection_stream)"
        assert sum(p.last - p.first for p in pieces) == sum(len(p.digests) for p in pieces) > 150
