"""Whole streams on both devices: the same plan writes the same bits in every buffer, launch by launch."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from golden.sources import LANES, Source, peers, trained
from harness.device import Device
from harness.engine import Choice, Engine, Request, decode, machine_of, open_engine
from harness.engine.session import setting
from harness.trace import canonical
from kernels.lowering import Machine
from kernels.plan import Launch
from kernels.steps import make_plan
from locks.models import prompt, weights
from oracle.model_weights import Weights

#: A launch's place in a run, and the digests of all buffers it wrote.
Row = tuple[str, str, tuple[str, ...]]
HOPPER = Machine("sm_90a", 132, 227 << 10)


def written(
    device: Device, w: Weights, choice: Choice, requests: Sequence[Request], planned: Machine
) -> tuple[list[list[int]], list[Row]]:
    """Tokens of a decode planned for a machine, and after every launch a digest of every whole buffer it wrote.

    Rows that do not exist, free slots and poison count too: nothing may differ where nobody looks.
    """
    s = replace(setting(device, w.config, choice), machine=planned)
    rows: list[Row] = []
    e: Engine = open_engine(device, s, make_plan(s, choice.chunk, choice.drafts), w)

    def after(program: str, item: Launch) -> None:
        digests = (hashlib.sha256(canonical(e.read(name)).tobytes()).hexdigest()[:16] for name in item.writes)
        rows.append((program, item.label, tuple(digests)))

    try:
        streams = decode(replace(e, after=after), requests)
    finally:
        e.close()
    return [s.tokens for s in streams], rows


def assert_same_rows(found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Equal launch by launch; the first that differs is named."""
    assert len(found) == len(expected) > 0
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a == b, f"launch {number} ({a[0]}, {a[1]}) writes other bits on the two devices"


def requests_of(source: Source) -> list[Request]:
    """Three prompts for two lanes, so that one sequence enters as another leaves."""
    first = source.prompts[0]
    return [Request(first, 12), Request(first[:3], 5), Request(first[2:9], 7)]


@pytest.mark.gpu
class TestHostAndGpu:
    """The same plan, made for the GPU, on both devices."""

    @pytest.mark.parametrize("drafts", [0, 2])
    @pytest.mark.parametrize("lane", LANES)
    def test_write_the_same_bits_in_every_buffer_of_every_launch(
        self, both_devices: tuple[Device, Device], lane: str, drafts: int
    ) -> None:
        """The trained checkpoint in every exact lane, plain and with drafts: streams, and all that any launch wrote.

        Red: a race, a read out of bounds or of stale memory, a compiler that contracts or approximates.
        """
        host, gpu = both_devices
        w, choice, requests = trained().weights(), Choice(lane, 2, 48, 16, drafts), requests_of(trained())
        runs = [written(d, w, choice, requests, machine_of(gpu)) for d in (gpu, host)]

        assert_same_rows(runs[0][1], runs[1][1])
        assert runs[0][0] == runs[1][0]

    def test_agree_on_a_model_of_another_make(self, both_devices: tuple[Device, Device]) -> None:
        """The independent implementation's model, imported from GGUF, the same way."""
        host, gpu = both_devices
        w, choice, requests = peers().weights(), Choice("a15", 2, 48, 16, 1), requests_of(peers())
        runs = [written(d, w, choice, requests, machine_of(gpu)) for d in (gpu, host)]

        assert_same_rows(runs[0][1], runs[1][1])
        assert runs[0][0] == runs[1][0]


class TestPlansOfAnotherMachine:
    """The plan of one machine on the other."""

    @pytest.mark.parametrize("lane", ["a15", "a8+s16+kv16", "q4"])
    def test_give_the_stream_of_this_machines_plan(self, device: Device, lane: str) -> None:
        """Planned for an H200 the host streams pre-tiled weights through its model of the copy engine: same tokens.

        Red: a streaming lowering, a split or a pre-tiled form that holds alone and not in a whole decode.
        """
        if device.properties.kind != "host":
            pytest.skip("not run: a GPU runs its own plan only")
        requests = [Request(prompt(9), 8), Request(prompt(3, 2), 5)]
        choice = Choice(lane, 2, 20, 5, 2)
        other = written(device, weights(), choice, requests, HOPPER)
        own = written(device, weights(), choice, requests, machine_of(device))

        assert other[0] == own[0]
        assert [len(t) for t in own[0]] == [r.count for r in requests]
        assert {row[1] for row in other[1]} == {row[1] for row in own[1]}
