"""The switch that puts a lane's number formats into the oracle, and nothing else of the lane."""

from functools import cache

import numpy as np
import pytest

from locks.oracle.exact import rel_l2
from locks.oracle.reference import GGUF, held, recorded
from oracle.blocks import Run
from oracle.delta_rule import STORES
from oracle.errors import LanelockError
from oracle.formats import (
    Q8_0,
    e4m3_blocks_decode,
    e4m3_blocks_encode,
    e4m3_pair_decode,
    e4m3_pair_encode,
    e4m3_rows_decode,
    e4m3_rows_encode,
    f16_round,
    q4_decode,
    q4_from_q8_0,
    q8_0_decode,
)
from oracle.lane import EXACT, Lane, parse, weight_values
from oracle.model import forward
from oracle.mtp import mtp_forward
from oracle.projection import projection
from oracle.quantize import quantize
from oracle.state import empty_cache
from oracle.weights import load

WEIGHTS = load(GGUF)
PROMPT = recorded()["prompt"][None]
ENTRIES = [("norm1", "qkvz", "qkvz"), ("gated", "mixer", "Wo"), ("norm2", "gu", "gu"), ("swiglu", "down", "Wd")]


@cache
def buffers(lane: str) -> dict[str, np.ndarray]:
    """Every buffer of the prompt in a lane, and of the draft head behind it."""
    seen: dict[str, np.ndarray] = {}
    run = Run(WEIGHTS, parse(lane), seen.__setitem__)
    hidden = forward(run, PROMPT, rows="all").hidden
    mtp_forward(run, PROMPT[:, 1:], hidden[:, :-1], empty_cache(run.config, 1))
    return seen


def error(lane: str) -> float:
    """What a lane's formats cost in the logits."""
    return rel_l2(buffers(lane)["logits"], buffers("f64")["logits"])


class TestNames:
    """Lanes as reports print them."""

    @pytest.mark.parametrize(("name", "lane"), [
        ("f64", EXACT), ("a15", Lane("a15", "a15")), ("a8+s16", Lane("a8+s16", "a8", state="f16")),
        ("q4+s16+kv16", Lane("q4+s16+kv16", "a8", "q4", "f16", "f16")),
        ("fp8b2", Lane("fp8b2", "e4m3_blocks", "e4m3_pair")),
        ("fp8c+delta", Lane("fp8c+delta", "e4m3_rows", "e4m3_rows")),
        ("fp8b", Lane("fp8b", "e4m3_blocks", "e4m3_blocks"))])
    def test_a_name_says_its_formats(self, name: str, lane: Lane) -> None:
        """The base gives activations and weights, +s16 and +kv16 the state and the cache."""
        assert parse(name) == lane

    @pytest.mark.parametrize(("name", "part"), [("a9", "'a9'"), ("a8+s8", r"\+s8"), ("", "''"), ("s16", "'s16'")])
    def test_an_unknown_part_is_named(self, name: str, part: str) -> None:
        """Neither a base nor an addition is guessed."""
        with pytest.raises(LanelockError, match=part):
            parse(name)


class TestActivations:
    """Where a lane quantises."""

    @pytest.mark.parametrize("lane", ["a15", "a8", "fp8c", "fp8b"])
    @pytest.mark.parametrize(("x", "y", "w"), ENTRIES)
    def test_every_projection_of_a_layer_reads_quantised_rows(self, lane: str, x: str, y: str, w: str) -> None:
        """Entry, output, gate/up and down read their input rounded in the lane's format, weights in theirs."""
        b, formats = buffers(lane), parse(lane)
        values = weight_values(WEIGHTS.tensor(f"layers.0.{w}"), formats.weights)

        assert rel_l2(b[f"layer0.{y}"], projection(quantize(b[f"layer0.{x}"], formats.activations), values)) < 1e-13

    @pytest.mark.parametrize("lane", ["a8", "fp8c"])
    def test_the_small_projection_reads_floats(self, lane: str) -> None:
        """The inputs b and a come from the norm before it is quantised."""
        b = buffers(lane)

        assert rel_l2(b["layer0.ba"], projection(b["layer0.norm1"], WEIGHTS.tensor("layers.0.ba"))) < 1e-13

    @pytest.mark.parametrize(("lane", "head"), [
        ("a8", "a8"), ("a15", "a15"), ("q4", "a8"), ("fp8c", "a8"), ("fp8b2", "a8")])
    def test_head_and_draft_entry_stay_q8_0(self, lane: str, head: str) -> None:
        """Their weights are never converted, and their activations are integers in every lane."""
        b = buffers(lane)

        assert rel_l2(b["logits"], projection(quantize(b["final_norm"], head), WEIGHTS.tensor("Wout"))) < 1e-13
        assert rel_l2(b["mtp.entry"], projection(quantize(b["mtp.cat"], head), WEIGHTS.tensor("mtp.ehproj"))) < 1e-13

    def test_the_embedding_is_never_touched(self) -> None:
        """Embedding rows are those of Q8_0 in every lane."""
        assert all((buffers(lane)["embed"] == buffers("f64")["embed"]).all() for lane in ("a8", "q4", "fp8c"))

    def test_finer_formats_cost_less(self) -> None:
        """a15 costs least, then a8, then the four-bit and e4m3 lanes; a pair of codes costs less than one."""
        assert 0 < error("a15") < error("a8") / 20
        assert error("a8") < min(error("q4"), error("fp8c"), error("fp8b"))


class TestWeights:
    """Weight formats made from Q8_0."""

    def test_values_are_those_of_the_formats(self) -> None:
        """Each format decodes its own encoding of the Q8_0 values."""
        w = WEIGHTS.tensor("layers.0.qkvz")
        assert isinstance(w, Q8_0)
        x = q8_0_decode(w)
        want = {
            "q8_0": x,
            "q4": q4_decode(q4_from_q8_0(w)),
            "e4m3_rows": e4m3_rows_decode(e4m3_rows_encode(x)),
            "e4m3_blocks": e4m3_blocks_decode(e4m3_blocks_encode(x)),
            "e4m3_pair": e4m3_pair_decode(e4m3_pair_encode(x)),
        }

        assert all((weight_values(w, name) == values).all() for name, values in want.items())

    def test_a_format_that_starts_from_q8_0_refuses_floats(self) -> None:
        """Unquantised weights are not quantised behind one's back, and an unknown format is named."""
        with pytest.raises(LanelockError, match="q4 weights are made from Q8_0"):
            weight_values(held().tensor("layers.0.Wd"), "q4")
        with pytest.raises(LanelockError, match="'q3'"):
            weight_values(WEIGHTS.tensor("layers.0.Wd"), "q3")


class TestState:
    """Half-width state and cache."""

    def test_an_f16_state_is_rounded_after_every_token(self) -> None:
        """Every element of the state is an f16 value, it is not a rounding of the exact state, and rings stay."""
        b, exact = buffers("f64+s16"), buffers("f64")

        assert (f16_round(b["layer0.S"]) == b["layer0.S"]).all()
        assert (b["layer0.S"] != f16_round(exact["layer0.S"])).any()
        assert (b["layer0.ring"] == exact["layer0.ring"]).all()
        assert 0 < rel_l2(b["layer0.scan"], exact["layer0.scan"]) < 2e-3

    def test_an_f16_cache_is_read_as_it_is_stored(self) -> None:
        """Keys after norm and rotation are rounded once, and attention reads the rounded ones, of this chunk too."""
        b, exact = buffers("f64+kv16"), buffers("f64")

        assert (b["layer3.K"].reshape(b["layer3.k"].shape) == f16_round(b["layer3.k"])).all()
        assert (f16_round(b["layer3.V"]) == b["layer3.V"]).all()
        assert (b["layer3.k"] == exact["layer3.k"]).all()
        assert 0 < rel_l2(b["layer3.attention"], exact["layer3.attention"]) < 2e-3

    def test_stores_are_f64_f16_and_bf16(self) -> None:
        """The oracle knows three widths; bf16 exists to show why it is refused."""
        assert set(STORES) == {"f64", "f16", "bf16"}
