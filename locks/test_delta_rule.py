"""Locks of the delta rule room: the scan over tokens, with its state in registers, in float32 or f16."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device import Device
from harness.run import GAP
from kernels.delta_chunk import DELTA_CHUNK
from kernels.delta_rule import DELTA_RULE, DELTA_RULE_STAGED, scan_form
from kernels.entry import Geometry, Kernel, instance, resolve
from locks.far import assert_same_far_away
from locks.sequences import assert_sequences_stand_alone, by_sequence, placed, token_major
from locks.support import (
    PROPERTY,
    Case,
    Share,
    U,
    assert_pitch_free,
    assert_same_bits,
    assert_same_outputs,
    assert_within,
    normal,
    rng,
    wild,
)
from oracle import delta_rule as truth
from oracle.bits.delta_rule import scan
from oracle.bits.functions import exp, sigmoid
from oracle.errors import LanelockError

WIDTHS = pytest.mark.parametrize("D", [32, 64, 128, 256])
STATES = pytest.mark.parametrize("state", ["f32", "f16"])
DTYPES = {"f32": np.float32, "f16": np.float16}
FORMS = pytest.mark.parametrize("form", ["loop", "one", "staged"])
STAGED_ROWS = 4
ALL, NEVER = -1, 0  # after which token the state is stored


def case_of(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    alpha: np.ndarray,
    beta: np.ndarray,
    pool: np.ndarray,
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    slots: Sequence[int] | None = None,
    stored: Sequence[int] | None = None,
    rows: int = 8,
) -> Case:
    """Queries and keys [B, T, HK, D], values [B, T, HV, D], gates [B, T, HV], states [slots, HV, D, D]."""
    B, T, HK, D = q.shape
    HV = v.shape[2]
    dims = {"T": T, "B": B, "slots": len(pool), "HK": HK, "HV": HV}
    qkv = np.concatenate([a.reshape(B, T, -1) for a in (q, k, v)], axis=-1)
    inputs = {
        "qkv": token_major(qkv),
        "alpha": token_major(alpha),
        "beta": token_major(beta),
        "state": pool,
        "replay": np.array([ALL] * B if stored is None else stored, np.int32),
        **placed(range(B, 0, -1) if slots is None else slots, positions, lengths),
    }
    state = "f16" if pool.dtype == np.float16 else "f32"
    return Case(DELTA_RULE, dims, inputs, {"D": D, "STATE": state, "ROWS": rows, "ONE": T == 1})


def random_case(
    seed: int,
    D: int,
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    state: str = "f32",
    heads: tuple[int, int] = (1, 2),
    slots: Sequence[int] | None = None,
    stored: Sequence[int] | None = None,
) -> Case:
    """Unit keys and queries, decays near one as a model has them, and a slot that nobody holds, full of NaN."""
    g = rng(seed, D)
    B, T, (HK, HV) = len(positions), max(lengths), heads
    q, k = (unit(normal(g, B, T, HK, D)) for _ in range(2))
    alpha = exp(-np.abs(normal(g, B, T, HV)) / 4)
    beta = sigmoid(normal(g, B, T, HV))
    pool = normal(g, B + 1, HV, D, D).astype(DTYPES[state])
    pool[0] = np.nan
    v = normal(g, B, T, HV, D)
    return case_of(q, k, v, alpha, beta, pool, positions, lengths, slots=slots, stored=stored)


def unit(x: np.ndarray) -> np.ndarray:
    """Heads of length one, in float32."""
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def operands(case: Case) -> tuple[np.ndarray, ...]:
    """Queries, keys (each repeated for its value heads), values [B, T, HV, D], alpha, beta [B, T, HV] of a case."""
    B, HK, HV, D = _sizes(case)
    qkv = by_sequence(case.inputs["qkv"], B)
    q, k, v = np.split(qkv, [HK * D, 2 * HK * D], axis=-1)
    key_of = np.arange(HV) % HK
    q, k = (a.reshape(*a.shape[:2], HK, D)[:, :, key_of] for a in (q, k))
    gates = (by_sequence(case.inputs[n], B) for n in ("alpha", "beta"))
    return q, k, v.reshape(*v.shape[:2], HV, D), *gates


def _sizes(case: Case) -> tuple[int, int, int, int]:
    return int(case.dims["B"]), int(case.dims["HK"]), int(case.dims["HV"]), int(case.template["D"])


def contract(case: Case) -> dict[str, np.ndarray]:
    """What the contract writes: outputs of every existing token, and the state after the token that stores it."""
    q, k, v, alpha, beta = operands(case)
    pool = case.inputs["state"].copy()
    o = np.full(v.shape, np.nan, np.float32)
    for b in range(len(q)):
        slot, start, length, stored = (int(case.inputs[n][b]) for n in ("slot", "position", "length", "replay"))
        if slot < 0 or length == 0:
            continue
        first = pool[slot].astype(np.float32)[None] if start else np.zeros((1, *pool.shape[1:]), np.float32)
        half = pool.dtype == np.float16
        for t in range(length):
            one = [a[b : b + 1, t : t + 1] for a in (q, k, v, alpha, beta)]
            out, first = scan(*one, first, half=half)
            o[b, t] = out[0, 0]
            if t + 1 == (length if stored == ALL else stored):
                with np.errstate(over="ignore"):
                    pool[slot] = first[0].astype(pool.dtype)
    return {"o": token_major(o).reshape(len(case.inputs["qkv"]), -1), "state": pool}


def tiny(alpha: Sequence[float], beta: float, v: Sequence[float], s0: float, k: Sequence[float] | float = 1.0) -> Case:
    """The handed cases' one-dimensional rule, zero-padded to a head of 32; q is one."""
    T = len(alpha)
    q = np.zeros((1, T, 1, 32), np.float32)
    keys, values = q.copy(), q.copy()
    q[..., 0], keys[0, :, 0, 0], values[0, :, 0, 0] = 1, k, v
    pool = np.zeros((2, 1, 32, 32), np.float32)
    pool[1, 0, 0, 0] = s0
    gates = [np.array(a, np.float32).reshape(1, T, 1) for a in (alpha, [beta] * T)]
    return case_of(q, keys, values, *gates, pool, [40], [T])


def answers(device: Device, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of the one dimension without the scale, and the state's one element."""
    got = case.run(device)
    return got["o"][:, 0] * np.sqrt(np.float32(32)), got["state"][1, 0, 0, 0]


@pytest.mark.verify
class TestHandedCases:
    """The rule's small known answers."""

    @pytest.mark.parametrize(("v", "beta", "expected"), [(1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.5, 0.75)])
    def test_decay_comes_before_the_error(self, device: Device, v: float, beta: float, expected: float) -> None:
        """Case 01: with S = 1 and alpha = 0.5 output and state are as handed. Red: decay after the update, 0.5."""
        o, s = answers(device, tiny([0.5], beta, [v], 1.0))

        np.testing.assert_allclose([o[0], s], expected, atol=1e-7)

    @pytest.mark.parametrize("g", [-np.inf, -200.0, -1e30])
    def test_a_vanished_decay_is_a_clean_reset(self, device: Device, g: float) -> None:
        """Case 03: outputs 0.5, 1.25, 1.5, 2.75 and state 2.75, no NaN. Red: 0 times what was kept taken as NaN."""
        alpha = exp(np.array([0, 0, g, 0], np.float32))
        o, s = answers(device, tiny(alpha.tolist(), 0.5, [1, 2, 3, 4], 0.0))

        np.testing.assert_allclose(o, [0.5, 1.25, 1.5, 2.75], rtol=1e-6)
        assert s == 2.75

    @pytest.mark.parametrize("staged", [False, True])
    @pytest.mark.parametrize(
        ("at", "expected"), [(0, [0.5, 1.25, 2.125, 3.0625]), (3, [50.5, 26.25, 14.625, 2.0])]
    )
    def test_a_reset_may_be_first_or_last(self, device: Device, at: int, expected: list[float], staged: bool) -> None:
        """Case 03: a state of 100 is forgotten at the first token, or all but what the last learns. Red: NaN of 0/0."""
        alpha = [1.0] * 4
        alpha[at] = 0.0
        case = tiny(alpha, 0.5, [1, 2, 3, 4], 100.0)
        o, s = answers(device, staged_form(case) if staged else case)

        np.testing.assert_allclose(o, expected, rtol=1e-6)
        assert s == expected[-1]

    @pytest.mark.parametrize(("T", "expected"), [(33, 0.0309031544), (63, 0.00131002051), (65, 0.00106111661)])
    def test_every_token_decays_the_state_once(self, device: Device, T: int, expected: float) -> None:
        """Case 05: a state of ones, keys of zero, alpha 0.9: 0.9^T. Red: a partial chunk's decay read from padding."""
        pool = np.ones((2, 1, 32, 32), np.float32)
        zeros = np.zeros((1, T, 1, 32), np.float32)
        gates = [np.full((1, T, 1), a, np.float32) for a in (0.9, 0.5)]
        state = case_of(zeros, zeros, zeros, *gates, pool, [7], [T]).run(device)["state"]

        # 0.9 is rounded once, and every product rounds once
        np.testing.assert_allclose(state[1], expected, rtol=2 * T * U + 5e-9)

    def test_a_later_pass_keeps_the_state(self, device: Device) -> None:
        """Case 06: a pass that starts at position 40 with keys of zero and alpha 1 leaves ones. Red: a zero start."""
        _, s = answers(device, tiny([1.0], 1.0, [0.0], 1.0, k=0.0))

        assert s == 1.0

    def test_beta_is_not_rounded_on_its_way(self, device: Device) -> None:
        """Case 10: with beta = sigmoid(0.5) the state is 0.62245933 in a chunk as in a step. Red: beta as bf16."""
        beta = float(sigmoid(np.float32(0.5)))
        one = answers(device, tiny([1.0], beta, [1.0], 0.0))[1]
        chunk = answers(device, tiny([1.0, 1.0, 1.0], beta, [1.0, 0.0, 0.0], 0.0, k=[1, 0, 0]))[1]

        np.testing.assert_allclose([one, chunk], 0.62245933, atol=1e-7)

    def test_a_plain_step_after_accepted_drafts_reads_their_state(self, device: Device) -> None:
        """Case 14: 10 committed, drafts 20, 30, 40, two accepted: the next step reads 30.

        Red: slot 0, 10; no roll-back, 40.
        """
        verify = tiny([1.0] * 4, 1.0, [10, 20, 30, 40], 0.0)
        verify.inputs["replay"][0] = NEVER
        pool = verify.run(device)["state"]
        commit = tiny([1.0] * 3, 1.0, [10, 20, 30], 0.0)
        pool = replace(commit, inputs={**commit.inputs, "state": pool}).run(device)["state"]
        plain = tiny([1.0], 1.0, [0], 0.0, k=0.0)

        o, _ = answers(device, replace(plain, inputs={**plain.inputs, "state": pool}))
        np.testing.assert_allclose(o, [30], rtol=1e-6)


def bound(case: Case, b: int) -> tuple[np.ndarray, np.ndarray]:
    """First-order error of outputs [T, HV, D] and of the last state [HV, D, D] of sequence b, carried token by token.

    E bounds the error of each state element, S its size, both in float64 from the exact rule's operands. A token: the
    decay rounds once; p is a chain of D/32 fma and 5 adds, and takes E k; d rounds twice and takes p's error; the
    update rounds once and takes |k| times d's error. The output is a chain of the same length, and a product with a
    scale that is rounded once. An f16 state adds half a unit of f16, of the size the element has.
    """
    q, k, v, alpha, beta = (a[b].astype(np.float64) for a in operands(case))
    pool, slot = case.inputs["state"], int(case.inputs["slot"][b])
    D, chain = q.shape[-1], (q.shape[-1] // 32 + 5) * U
    S = pool[slot].astype(np.float64) * (case.inputs["position"][b] > 0)
    E, o = np.zeros_like(S), np.empty(v.shape)
    for t in range(int(case.inputs["length"][b])):
        S, E = alpha[t][:, None, None] * S, alpha[t][:, None, None] * E
        E += U * np.abs(S)
        row = np.abs(k[t])[:, None, :]
        error_p = chain * (np.abs(S) * row).sum(-1) + (E * row).sum(-1)
        rest = v[t] - (S * k[t][:, None, :]).sum(-1)
        d = beta[t][:, None] * rest
        error_d = beta[t][:, None] * (error_p + U * np.abs(rest)) + U * np.abs(d)
        S = S + d[..., None] * k[t][:, None, :]
        E = E + error_d[..., None] * row + U * np.abs(S)
        read = np.abs(q[t])[:, None, :]
        o[t] = ((chain + 2 * U) * (np.abs(S) * read).sum(-1) + (E * read).sum(-1)) / np.sqrt(D)
        if pool.dtype == np.float16:
            E = E + 2.0**-11 * np.abs(S) + 2.0**-25
    return o * (1 + 2.0**-8), E * (1 + 2.0**-8)


@pytest.mark.verify
class TestValue:
    """The kernel computes the gated delta rule."""

    @WIDTHS
    @STATES
    def test_outputs_and_state_are_within_their_bounds(self, device: Device, share: Share, D: int, state: str) -> None:
        """Every element lies within the derived bound of float64. Red: decay after the update, a scale dropped."""
        case = random_case(1, D, (0, 9), (3, 5), state=state)
        got = case.run(device)

        check(share, case, got, f"D = {D}, {state}")

    @pytest.mark.parametrize("g", [0.0, -np.inf, -20.0, np.log1p(-(2.0**-12))])
    def test_any_decay_is_within_its_bound(self, device: Device, share: Share, g: float) -> None:
        """The decays no forgetting, all, nearly all and nearly none. Red: 0/0 where a decay is zero."""
        case = random_case(2, 64, (5,), (6,))
        case.inputs["alpha"][2:4] = exp(np.float32(g))

        check(share, case, case.run(device), f"g = {g}")


def check(share: Share, case: Case, got: dict[str, np.ndarray], what: str) -> None:
    """Outputs and states of every sequence against float64 within their bounds."""
    q, k, v, alpha, beta = (a.astype(np.float64) for a in operands(case))
    o = by_sequence(got["o"], len(q)).reshape(v.shape)
    for b in range(len(q)):
        slot, length = int(case.inputs["slot"][b]), int(case.inputs["length"][b])
        first = case.inputs["state"][slot].astype(np.float64) * (case.inputs["position"][b] > 0)
        with np.errstate(divide="ignore"):
            one = [a[b : b + 1, :length] for a in (q, k, v, np.log(alpha), beta)]
        out, last = truth.sequential(*one, first[None])
        allowed_o, allowed_s = bound(case, b)
        assert_within(share, f"outputs, {what}", o[b, :length], out[0], allowed_o[:length])
        assert_within(share, f"state, {what}", got["state"][slot], last[0], allowed_s)


@pytest.mark.verify
class TestContract:
    """The kernels are the contract, bit for bit."""

    @WIDTHS
    @STATES
    def test_chunks_are_the_contract(self, device: Device, D: int, state: str) -> None:
        """Outputs and states follow the contract, each sequence with its own length. Red: an fma split in two."""
        case = random_case(3, D, (0, 3, 7), (2, 3, 0), state=state, heads=(2, 4))

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize("heads", [(1, 1), (2, 4), (1, 3), (2, 6)])
    def test_every_ratio_of_heads_is_the_contract(self, device: Device, heads: tuple[int, int]) -> None:
        """Value head h reads key head h modulo the key heads, at ratios 1, 2, 3. Red: grouped order, h // ratio."""
        case = random_case(4, 32, (1,), (3,), heads=heads)

        assert_same_outputs(case.run(device), contract(case))

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), D=st.sampled_from([32, 64, 128, 256]), state=st.sampled_from(["f32", "f16"]))
    def test_values_of_any_size_are_the_contract(self, device: Device, seed: int, D: int, state: str) -> None:
        """Values from subnormal to the largest follow the contract, staged or not, overflow of an f16 state included.

        Red: a flushed subnormal, an f16 state that saturates.
        """
        g = rng(seed)
        pool = wild(g, 2, 1, D, D)
        with np.errstate(over="ignore"):
            pool = pool.astype(DTYPES[state])
        rows = [wild(g, 1, 2, 1, D) for _ in range(3)]
        case = case_of(*rows, np.abs(wild(g, 1, 2, 1)), np.abs(wild(g, 1, 2, 1)), pool, [1], [2])
        expected = contract(case)

        assert_same_outputs(case.run(device), expected)
        assert_same_outputs(staged_form(case).run(device), expected)

    @STATES
    def test_checkpoints_are_the_contract(self, device: Device, state: str) -> None:
        """The state is stored after the token asked for, after all, or never. Red: the last state stored anyway."""
        case = random_case(5, 32, (4, 4, 4, 4), (4, 4, 4, 3), state=state, stored=(2, NEVER, ALL, 3))

        assert_same_outputs(case.run(device), contract(case))


class TestExactIntegers:
    """Where every step is exact the result is the integers themselves."""

    def test_orthogonal_keys_write_their_values(self, device: Device) -> None:
        """One-hot keys with alpha = beta = 1 store their values in columns, and queries read them back exactly.

        Red: a row written to a neighbour's place, a key of the wrong token, sequence-major rows (fault 19).
        """
        T, B = 32, 2
        k = np.broadcast_to(np.eye(32, dtype=np.float32)[None, :, None], (B, T, 1, 32)).copy()
        v = rng(6).integers(-50, 50, (B, T, 1, 32)).astype(np.float32)
        ones = np.ones((B, T, 1), np.float32)
        pool = np.zeros((B + 1, 1, 32, 32), np.float32)
        got = case_of(k, k, v, ones, ones, pool, [0] * B, [T] * B).run(device)

        for b in range(B):
            assert_same_bits(got["state"][B - b, 0], np.ascontiguousarray(v[b, :, 0].T))
        scaled = v[:, :, 0] * np.float32(32**-0.5)
        assert_same_bits(by_sequence(got["o"], B), scaled)


class TestForms:
    """Every form writes the same bits."""

    @STATES
    @pytest.mark.parametrize("pieces", [(1,) * 12, (5, 7), (1, 11), (11, 1), (4, 8)])
    def test_any_split_gives_the_same_bits(self, device: Device, state: str, pieces: tuple[int, ...]) -> None:
        """Case 06: twelve tokens in any pieces give the chunk's outputs and state. Red: f16 rounded once a chunk."""
        case = random_case(7, 32, (0,), (12,), state=state)
        whole = case.run(device)
        start, outputs, pool = 0, [], case.inputs["state"]
        for length in pieces:
            got = part(case, start, start + length, pool).run(device)
            outputs.append(got["o"])
            start, pool = start + length, got["state"]

        assert_same_outputs({"o": np.concatenate(outputs), "state": pool}, whole)

    @STATES
    @pytest.mark.parametrize("middle", [1, 3, 6])
    def test_a_checkpoint_is_a_shorter_chunk(self, device: Device, state: str, middle: int) -> None:
        """The state kept after token MID of a longer chunk is that of a chunk of MID.

        Red: the checkpoint a token late.
        """
        case = random_case(8, 64, (3,), (7,), state=state)
        short = part(case, 0, middle, case.inputs["state"]).run(device)["state"]
        case.inputs["replay"][0] = middle

        assert_same_bits(case.run(device)["state"], short)

    @WIDTHS
    @pytest.mark.parametrize("lengths", [(2, 1), (1, 1)])
    def test_rows_a_warp_do_not_matter(self, device: Device, D: int, lengths: tuple[int, int]) -> None:
        """Four rows a warp give the bits of eight. Red: the last rows of a head left out."""
        case = random_case(9, D, (0, 2), lengths)

        assert_same_outputs(replace(case, template={**case.template, "ROWS": 4}).run(device), case.run(device))

    @WIDTHS
    @STATES
    def test_a_pass_of_one_token_is_a_chunk_of_one(self, device: Device, D: int, state: str) -> None:
        """Without a loop the bits are the same, for sequences that begin, go on or have no token, stored or not.

        Red: an empty sequence that takes part, a state stored that a verify keeps.
        """
        stored = (ALL, NEVER, 1, ALL, ALL)
        case = random_case(23, D, (0, 2, 5, 7, 3), (1, 1, 1, 0, 1), state=state, heads=(2, 6), stored=stored)

        loop = replace(case, template={**case.template, "ONE": False})
        assert_same_outputs(case.run(device), loop.run(device))
        assert_same_outputs(case.run(device), contract(case))

    @WIDTHS
    @STATES
    def test_staged_keys_do_not_matter(self, device: Device, D: int, state: str) -> None:
        """Tokens from shared memory give the same bits at any length, stored after any token or never.

        Red: a barrier dropped, a stale stage, a state stored with each stage.
        """
        heads = (2, 6) if D == 32 else (1, 2)
        case = random_case(10, D, (0, 2, 5, 3), (19, 17, 1, 9), state=state, heads=heads, stored=(11, NEVER, ALL, 8))

        assert_same_outputs(staged_form(case).run(device), case.run(device))

    @pytest.mark.parametrize(("D", "stage"), [(32, 16), (256, 8)])
    def test_lengths_about_whole_stages_do_not_matter(self, device: Device, D: int, stage: int) -> None:
        """Case 05: sequences of none, 1 and 2 tokens, and of one less and one more than one or two stages.

        Red: a last stage taken as whole, its tokens read from behind the sequence's end.
        """
        lengths = (0, 1, 2, *(stage * n + d for n in (1, 2) for d in (-1, 0, 1)))
        case = random_case(24, D, (3,) * len(lengths), lengths, heads=(1, 1)).prefilled(GAP)

        assert_same_outputs(staged_form(case).run(device), case.run(device))

    def test_the_chunked_rule_is_no_exact_form(self) -> None:
        """The chunked rule is bounded, so no lane takes it for the scan; locks/test_delta_chunk.py holds it. Red: a
        chunked kernel that claims to be exact.
        """
        assert DELTA_RULE.exact
        assert DELTA_RULE_STAGED.exact
        assert not DELTA_CHUNK.exact

    @STATES
    def test_random_drafts_leave_the_state_of_plain_decoding(self, device: Device, state: str) -> None:
        """Case 14: steps with 0 to 3 drafts and random acceptance keep the state that plain decoding has, every step.

        Red: a verify that stores, a commit of one row too many, a plain step between that skips the commit.
        """
        g = rng(11)
        case = random_case(11, 32, (1,), (60,), state=state)
        plain = speculative = case.inputs["state"]
        at, owed = 0, (0, 0)
        while at < 54:
            drafts = int(g.integers(0, 4))
            kept = 1 + int(g.integers(0, drafts + 1))
            if owed[1] > owed[0]:
                speculative = part(case, *owed, speculative).run(device)["state"]
            verify = part(case, at, at + 1 + drafts, speculative)
            verify.inputs["replay"][0] = NEVER if drafts else ALL
            speculative = verify.run(device)["state"]
            owed = (at, at + kept) if drafts else (at, at)
            plain = part(case, at, at + kept, plain).run(device)["state"]
            at += kept
            stands = part(case, *owed, speculative).run(device)["state"] if drafts else speculative
            assert_same_bits(stands, plain, f"at {at}")


def staged_form(case: Case) -> Case:
    """The same through shared memory."""
    return replace(case, kernel=DELTA_RULE_STAGED, template={**case.template, "ROWS": STAGED_ROWS, "ONE": False})


def as_form(case: Case, form: str) -> Case:
    """A case of one token in a form, by name."""
    return staged_form(case) if form == "staged" else replace(case, template={**case.template, "ONE": form == "one"})


def part(case: Case, first: int, last: int, pool: np.ndarray) -> Case:
    """Tokens first to last - 1 of a case of one sequence, over other states."""
    inputs = {n: case.inputs[n][first:last] for n in ("qkv", "alpha", "beta")}
    where = placed([1], [int(case.inputs["position"][0]) + first], [last - first])
    replay = np.array([ALL], np.int32)
    one = case.kernel is DELTA_RULE and last - first == 1
    dims, template = {**case.dims, "T": last - first}, {**case.template, "ONE": one}
    return replace(case, inputs={**inputs, **where, "replay": replay, "state": pool}, dims=dims, template=template)


def norm_bounds(case: Case) -> tuple[np.ndarray, float]:
    """Bounds of the Euclidean error of every token's outputs and of the last state, of sequence 0 with one value head.

    Element by element, as in `bound`, an error would seem to grow with every token. In the norm it does not: a token
    takes S to alpha S (I - beta k k^T), which lengthens nothing where beta k.k is at most 2. So e' is alpha e, and the
    roundings of the token as there, those of an f16 state included.
    """
    q, k, v, alpha, beta = (a[0, :, 0].astype(np.float64) for a in operands(case))
    D, chain = q.shape[-1], (q.shape[-1] // 32 + 5) * U
    S = case.inputs["state"][1, 0].astype(np.float64) * (case.inputs["position"][0] > 0)
    e, o = 0.0, np.empty(len(q))
    for t in range(len(q)):
        S, square = alpha[t] * S, k[t] @ k[t]
        size = np.linalg.norm(S)
        e = (alpha[t] * e + U * size) * max(1.0, abs(1 - beta[t] * square))
        rest = v[t] - S @ k[t]
        d = beta[t] * rest
        S = S + np.outer(d, k[t])
        after = np.linalg.norm(S)
        e += beta[t] * square * chain * size + 2 * U * np.linalg.norm(d) * np.sqrt(square) + U * after
        o[t] = (e + (chain + 2 * U) * after) * np.linalg.norm(q[t]) / np.sqrt(D)
        if case.inputs["state"].dtype == np.float16:
            e += 2.0**-11 * after + 2.0**-25 * D
    return o * (1 + 2.0**-8), e * (1 + 2.0**-8)


class TestLongContext:
    """Tens of thousands of tokens, whose early errors a decay forgets."""

    @pytest.mark.nightly
    @STATES
    def test_a_long_chunk_is_within_its_bound_and_splits_like_any(
        self, device: Device, share: Share, state: str
    ) -> None:
        """65536 tokens (8192 on the host) in one launch are those of two, and within the derived bound of float64.

        Red: an error that grows with the length, a stage counted in 16 bits.
        """
        length = 65536 if device.properties.kind == "cuda" else 8192
        case = staged_form(random_case(22, 32, (0,), (length,), heads=(1, 1), state=state))
        got = case.run(device)
        before = part(case, 0, length - 21, case.inputs["state"]).run(device)["state"]
        behind = part(case, length - 21, length, before).run(device)
        assert_same_outputs(behind, {"o": got["o"][length - 21 :], "state": got["state"]})

        q, k, v, alpha, beta = (a.astype(np.float64) for a in operands(case))
        true_o, true_s = truth.sequential(q, k, v, np.log(alpha), beta, np.zeros((1, 1, 32, 32)))
        allowed_o, allowed_s = norm_bounds(case)
        outputs = np.linalg.norm(got["o"] - true_o[0, :, 0], axis=-1)
        assert_within(share, f"outputs of {length} tokens, {state}", outputs, 0 * outputs, allowed_o)
        last = np.linalg.norm(got["state"][1] - true_s[0])
        assert_within(share, f"state behind {length} tokens, {state}", last, 0.0, allowed_s)


class TestOneRounding:
    """An f16 state is rounded once a token."""

    def test_state_is_the_nearest_f16(self, device: Device) -> None:
        """After one token an f16 state is the f16 nearest to what a float32 state becomes. Red: two roundings."""
        half = random_case(12, 64, (3,), (1,), state="f16")
        wide = replace(half, inputs={**half.inputs, "state": half.inputs["state"].astype(np.float32)},
                       template={**half.template, "STATE": "f32"})  # fmt: skip

        nearest = wide.run(device)["state"][1].astype(np.float16)
        assert_same_bits(half.run(device)["state"][1], nearest)

    def test_an_overflow_is_loud(self, device: Device) -> None:
        """A state beyond f16 becomes infinite, and the next output NaN or infinite. Red: saturation to 65504."""
        case = random_case(13, 32, (3,), (2,), state="f16")
        case.inputs["state"][1, 0, 3, 5] = 60000.0
        case.inputs["alpha"][:] = 2.0
        got = case.run(device)

        assert not np.isfinite(got["o"][1, 3])
        assert not np.isfinite(got["state"][1, 0, 3, 5])


class TestInvariance:
    """A sequence's bits are its own."""

    @STATES
    def test_sequences_stand_alone(self, device: Device, state: str) -> None:
        """Alone, permuted, in other slots, among NaN: the same bits; absent sequences touch nothing.

        Red: B for slot.
        """
        case = random_case(14, 32, (0, 9, 4, 2), (3, 1, 0, 2), state=state, slots=(4, 3, 1, -1), stored=(ALL, 1, 2, 1))

        assert_sequences_stand_alone(device, case)

    def test_staged_sequences_stand_alone(self, device: Device) -> None:
        """The same with keys in shared memory. Red: a stage that holds a neighbour's keys."""
        case = random_case(15, 32, (0, 9, 4, 7), (3, 9, 1, 0), slots=(3, 1, -1, 2))

        assert_sequences_stand_alone(device, staged_form(case))

    @pytest.mark.parametrize("staged", [False, True])
    def test_pitches_may_be_wider(self, device: Device, staged: bool) -> None:
        """Case 35: rows further apart give the same bits and keep their padding. Red: a pitch taken as the width."""
        case = random_case(16, 32, (0, 5), (2, 2))

        assert_pitch_free(device, staged_form(case) if staged else case)

    def test_devices_give_the_same_bits(self, both_devices: tuple[Device, Device]) -> None:
        """Host and GPU agree at either width, in every form. Red: a contraction, a reduction of another shape."""
        host, cuda = both_devices
        for state in ("f32", "f16"):
            one = random_case(17, 128, (0, 9, 4), (1, 1, 1), state=state, heads=(16, 48))
            assert_same_outputs(one.run(cuda), one.run(host))
            case = random_case(17, 128, (0, 9, 4), (17, 8, 1), state=state, heads=(16, 48))
            expected = case.run(host)
            assert_same_outputs(case.run(cuda), expected)
            assert_same_outputs(staged_form(case).run(cuda), expected)


class TestFaults:
    """What a slot held before does not come back, and a fault does not hide."""

    @FORMS
    @STATES
    def test_a_slot_entered_again_is_clean(self, device: Device, state: str, form: str) -> None:
        """At position 0 a state of NaN reads as zeros, in every form. Red: zero times NaN for a state not read."""
        case = as_form(random_case(18, 32, (0,), (1,), state=state), form)
        nan = replace(case, inputs={**case.inputs, "state": np.full_like(case.inputs["state"], np.nan)})
        got, expected = nan.run(device), case.run(device)

        assert_same_bits(got["o"], expected["o"])
        assert_same_bits(got["state"][1], expected["state"][1])

    @FORMS
    def test_no_position_but_the_first_begins_a_sequence(self, device: Device, form: str) -> None:
        """At 1, 255, 256, 257, 65536, 131071 and 262143 the state goes on. Red: a position in 8 or 16 bits."""
        positions = (1, 255, 256, 257, 65536, 131071, 262143)
        case = as_form(random_case(25, 32, positions, (1,) * len(positions), heads=(1, 1)), form)

        assert_same_outputs(case.run(device), contract(case))

    @pytest.mark.parametrize("name", ["alpha", "beta"])
    def test_a_nan_gate_spoils_its_head_only(self, device: Device, name: str) -> None:
        """A NaN gate makes every later output of its head NaN, and none of another. Red: a gate of a neighbour."""
        case = random_case(19, 32, (3,), (3,), heads=(1, 3))
        case.inputs[name][1, 1] = np.nan
        o = case.run(device)["o"].reshape(3, 3, 32)

        assert_same_bits(np.isnan(o).all(axis=-1), np.array([[0, 0, 0], [0, 1, 0], [0, 1, 0]], bool))
        assert_same_bits(np.isnan(o).any(axis=-1), np.array([[0, 0, 0], [0, 1, 0], [0, 1, 0]], bool))


class TestOffsets:
    """Offsets are counted in 64 bits."""

    @pytest.mark.parametrize(("tokens", "staged"), [(1, False), (2, False), (2, True)])
    @STATES
    def test_a_pool_beyond_32_bits_gives_the_same_bits(
        self, device: Device, state: str, tokens: int, staged: bool
    ) -> None:
        """The last slots of a pool of the 27B with more than 2^31 elements are slots like any other.

        Red: an offset of a slot in an int, which reads and writes before the pool or at its start.
        """
        case = random_case(20, 128, (3,), (tokens,), state=state, heads=(16, 48))

        assert_same_far_away(device, staged_form(case) if staged else case, slots=2**31 // (48 * 128 * 128) + 8)

    @pytest.mark.parametrize("staged", [False, True])
    @pytest.mark.parametrize("pitch", ["qkv_pitch", "o_pitch"])
    def test_rows_beyond_32_bits_give_the_same_bits(self, device: Device, pitch: str, staged: bool) -> None:
        """Tokens 2^28 elements apart, the last of them behind 2^31. Red: a row times its pitch in an int."""
        case = random_case(21, 32, (3,), (10,))

        assert_same_far_away(device, staged_form(case) if staged else case, **{pitch: 2**28})


class TestWork:
    """A launch is as wide as its work."""

    @pytest.mark.parametrize(("T", "B", "form"), [
        (1, 5, ("delta_rule", {"ROWS": 4, "ONE": True})), (2, 4, ("delta_rule", {"ROWS": 4, "ONE": False})),
        (15, 5, ("delta_rule", {"ROWS": 8, "ONE": False})), (16, 1, ("delta_rule_staged", {"ROWS": 4})),
    ])  # fmt: skip  # a line
    def test_a_pass_takes_the_form_that_was_measured_for_it(
        self, T: int, B: int, form: tuple[str, dict[str, int]]
    ) -> None:
        """One token and few sequences take more warps, many tokens the staged form. Red: a threshold off by one."""
        assert scan_form(T, B) == form

    def test_grid_has_no_block_too_many(self) -> None:
        """Each of two value heads of one key head, 64 rows at eight a warp, takes two blocks of four warps a sequence.

        Red: fault 13, blocks whose work another block does again.
        """
        inst = instance(DELTA_RULE, D=64, STATE="f32", ROWS=8, ONE=False)
        dims = resolve(inst, {"T": 3, "B": 5, "slots": 5, "HK": 1, "HV": 2})

        assert DELTA_RULE.geometry(dims) == Geometry((2, 2, 5), (128, 1, 1))


class TestRefusal:
    """What the kernels do not support is refused by one sentence before a launch."""

    @pytest.mark.parametrize(("kernel", "rows"), [(DELTA_RULE, 8), (DELTA_RULE_STAGED, STAGED_ROWS)])
    @pytest.mark.parametrize(
        ("dims", "sentence"),
        [
            ({"HK": 2, "HV": 3}, "HV = 3 heads must be a positive multiple of HK = 2"),
            ({"HK": 0}, "HV = 2 heads must be a positive multiple of HK = 0"),
            ({"HV": 65536}, "65536 / 1 heads a key head exceed a grid axis"),
            ({"T": 0}, "T = 0 must be between 1 and"),
            ({"B": 65536}, "B = 65536 must be between 1 and 65535"),
            ({"slots": 0}, "slots = 0 must be between 1 and"),
            ({"qkv_pitch": 100}, "qkv_pitch = 100 is less than the row"),
            ({"qkv_pitch": 130}, "qkv_pitch = 130 must be a multiple of 4"),
            ({"o_pitch": 63}, "o_pitch = 63 is less than the row"),
            ({"HK": 2**24, "HV": 2**25}, "a row of 2147483648 elements exceeds what an int can count"),
        ],
    )
    def test_unsupported_size_is_refused(
        self, device: Device, kernel: Kernel, rows: int, dims: dict[str, int], sentence: str
    ) -> None:
        """The refusal names the size and what it must be. Red: a rule dropped from the entry."""
        given = {"T": 1, "B": 1, "slots": 1, "HK": 1, "HV": 2, **dims}

        with pytest.raises(LanelockError, match=sentence):
            Case(kernel, given, {}, {"D": 32, "STATE": "f32", "ROWS": rows, "ONE": False}).run(device)

    def test_several_tokens_are_not_one(self, device: Device) -> None:
        """The form without a loop takes passes of one token alone. Red: all tokens but the first left out."""
        given = {"T": 2, "B": 1, "slots": 1, "HK": 1, "HV": 2}

        with pytest.raises(LanelockError, match="a pass of T = 2 tokens is not one of a token"):
            Case(DELTA_RULE, given, {}, {"D": 32, "STATE": "f32", "ROWS": 4, "ONE": True}).run(device)
