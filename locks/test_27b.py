"""The 27B shape from synthetic weights: what one H200 holds, decoded in every exact lane, and held to host and oracle.

All but the checks of the tools themselves are of the nightly tier, and take a GPU of their own: without `-n`, with
`--tier nightly --shapes full --device all`.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import oracle
from golden.sources import LANES
from harness.cache import cache_key, cached
from harness.device import Device
from harness.devices import open_device
from harness.engine import Choice, Engine, Request, decode, machine_of, opened, opened_beside, prompt_logits
from harness.engine.session import plan_of
from harness.observed import observed
from harness.workers import exclusive
from kernels.lowering import Machine
from locks.far import require_memory
from locks.following import excesses
from locks.parts import Job, differences, differing, recorded
from locks.support import assert_same_bits, assert_within
from oracle.config import ModelConfig, preset
from oracle.error_bound import Bound, bound_of
from oracle.formats import Q8_0
from oracle.model_weights import Tensor, Weights, specs
from oracle.weights import load
from oracle.weights.assemble import is_quantised

SEED = "synthetic:1"
MODEL = preset("qwen3.8-27b")
PROMPT, COUNT = 512, 128
SHORT = (1, 2, 3, 4)
Share = Callable[[str, float, float], float]
H200 = Machine("sm_90a", 132, 227 << 10)


def requests(B: int, vocab: int = MODEL.vocab) -> list[Request]:
    """A prompt a sequence; sequence b has the same one in every batch."""
    prompts = (np.random.default_rng([1, b]).integers(0, vocab, PROMPT) for b in range(B))
    return [Request(tuple(int(t) for t in p), COUNT) for p in prompts]


def taken(device: Device, choice: Choice, *beside: Choice) -> int:
    """Bytes of an engine, and of the largest of those that stand beside it one after another over its weights."""
    plans = [plan_of(device, MODEL, c).buffers.values() for c in (choice, *beside)]
    own = [sum(b.nbytes for b in plan if not b.name.startswith("w.")) for plan in plans]
    return sum(b.nbytes for b in plans[0]) + max(own[1:], default=0)


@contextmanager
def engine(device: Device, choice: Choice, *beside: Choice) -> Iterator[Engine]:
    """An engine over the model, its GPU held alone; not run where this worker may not have the memory."""
    require_memory(device, taken(device, choice, *beside))
    with exclusive(getattr(device, "uuid", "host")), opened(device, load(SEED, MODEL), choice) as e:
        yield e


def decoded(e: Engine) -> tuple[list[list[int]], np.ndarray]:
    """Streams of as many prompts as it has lanes, and the first one's last logits (those of a step without drafts)."""
    streams = decode(e, requests(e.setting.B))
    assert [s.stopped for s in streams] == ["count"] * e.setting.B
    return [s.tokens for s in streams], e.read("logits")[: MODEL.vocab].copy()


class TestMemory:
    """What the full model takes of a GPU."""

    def test_that_a_worker_may_not_have_is_not_run_by_name(self) -> None:
        """An eighth of an H200 holds no stream of it, a whole one does. Red: eight workers that are red each night."""
        device, choice = open_device("host"), Choice("a8", 1, PROMPT + COUNT, PROMPT)
        total = taken(device, choice, replace(choice, B=32))
        device.budget = 130 << 30  # type: ignore[attr-defined]  # as a GPU has one
        require_memory(device, total)
        device.budget >>= 3  # type: ignore[attr-defined]  # as above

        assert total > taken(device, choice) > 27e9
        with pytest.raises(pytest.skip.Exception, match=f"^not run: takes {total} bytes of device memory"):
            require_memory(device, total)


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
        plain = [Choice(lane, B, PROMPT + COUNT, PROMPT, graphs=True) for B in (32, 8, 1)]
        made = []
        # the engine with drafts first: its weights are the others' too, and those of the draft head
        with engine(device, replace(plain[-1], chunk=192, drafts=2), *plain) as e:
            drafted, _ = decoded(e)
            for choice in plain:
                with opened_beside(e, choice) as other:
                    made.append(decoded(other))
        (tokens, logits), (eight, of_eight), (one, of_one) = made

        assert eight == tokens[:8]
        assert one == drafted == tokens[:1]
        assert len(set(one[0])) > COUNT // 8, "a stream of few tokens shows little"
        assert_same_bits(of_eight, logits)
        assert_same_bits(of_one, logits)


@dataclass(frozen=True, slots=True)
class Threaded:
    """Synthetic weights whose rows are made by all processors at once, a matrix of hundreds of MB at a time."""

    inner: Weights

    @property
    def config(self) -> ModelConfig:
        """Sizes of the model."""
        return self.inner.config

    def tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        shape = specs(self.config)[name].shape
        if not is_quantised(name):
            return self.inner.tensor(name)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = np.array_split(np.arange(shape[0]), 4 * (os.cpu_count() or 1))
            every = pool.map(lambda rows: self.inner.rows(name, rows), parts)
            made = [part for part in every if isinstance(part, Q8_0)]
        return Q8_0(np.concatenate([p.codes for p in made]), np.concatenate([p.scales for p in made]))

    def rows(self, name: str, index: np.ndarray) -> Tensor:
        """Those rows of a matrix."""
        return self.inner.rows(name, index)


def bound_key(lane: str) -> str:
    """Key of a held bound: lane, prompt, and the oracle's sources but for the contract's and the readers of files."""
    paths = sorted(Path(oracle.__file__).parent.rglob("*.py"))
    own = [p for p in paths if p.parent.name not in ("bits", "weights") or p.stem in ("assemble", "synthetic")]
    return cache_key("bound of 27b", lane, str(SEED), repr(SHORT), *(path.read_bytes() for path in own))


def held_bound(lane: str) -> Bound:
    """The bound of SHORT in a lane; made once a cache, because it takes minutes."""

    def produce(path: Path) -> None:
        made = bound_of(Threaded(load(SEED, MODEL)), lane, SHORT, range(len(SHORT)), 32)
        with path.open("wb") as file:
            np.savez(file, truth=made.truth, reach=made.reach, norm=made.norm)

    with np.load(cached(bound_key(lane), produce)) as held:
        return Bound(*(held[name].astype(np.float64) for name in ("truth", "reach", "norm")))


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.full
class TestOracle:
    """A short prompt against float64, streamed layer by layer."""

    @pytest.mark.parametrize("lane", ["a15"])
    def test_logits_lie_within_the_bound_of_their_lanes_roundings(
        self, device: Device, lane: str, share: Share
    ) -> None:
        """Every logit behind four tokens, their rows, and best tokens up to a margin below both bounds.

        Through 64 layers the roundings of A8 spread to more than the logits themselves, so that of a8 and q4 no such
        bound says anything; the lock below holds them.

        Red: a fault that only the full widths show: a slice, a tile or an offset that a small model does not have.
        """
        with engine(device, Choice(lane, 1, 8, 1)) as e:
            logits = prompt_logits(e, SHORT).astype(np.float64)
        bound = held_bound(lane)
        assert (bound.norm < np.linalg.norm(bound.truth, axis=-1) / 4).all(), "a bound that says little"
        assert_within(share, "a logit", logits, bound.truth, bound.reach)
        away, size = np.linalg.norm(logits - bound.truth), np.linalg.norm(bound.truth)
        assert share("rel_L2 of the logits", float(away / size), float(np.linalg.norm(bound.norm) / size)) <= 1
        assert bound.norm_shares(logits).max() <= 1
        assert bound.disagreements(logits)[1] == 0

    @pytest.mark.parametrize("lane", ["a8", "a15", "q4"])
    def test_every_rounding_is_of_the_value_that_float64_has_there(
        self, device: Device, lane: str, share: Share
    ) -> None:
        """Codes, scales, residuals and logits of all 64 layers, the oracle on the codes before each.

        Red: an error of half a step anywhere in the full model.
        """
        text, worst = SHORT[:2], 0.0
        with engine(device, Choice(lane, 1, 8, 1)) as e:
            found = observed(e, text)
        names = []
        for name, excess, arithmetic in excesses(found, Threaded(load(SEED, MODEL)), lane, text, samples=16):
            assert np.isfinite(excess).all()
            assert np.isfinite(arithmetic).all()
            worst = max(worst, float((excess / np.maximum(arithmetic, np.finfo(float).tiny)).max()))
            names.append(name)

        assert share("arithmetic of the worst rounding", worst, 1.0) <= 1.0
        assert len(names) == 2 * (4 * MODEL.layers + 1) + MODEL.layers + 1


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
        job = Job(SEED, MODEL, Choice(lane, 1, 8, 4, 1), machine_of(gpu), tmp_path)
        require_memory(gpu, taken(gpu, job.choice))
        with exclusive(getattr(gpu, "uuid", "")):
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
