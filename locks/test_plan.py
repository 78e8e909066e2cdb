"""Plans as data: what a launch reads was written, scratch holds its widest user, each weight is read once."""

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from harness.cli import main
from harness.device import Device, OutOfBounds
from harness.engine import Choice, Request, decode
from harness.engine.load import tensor_of
from harness.run import scalar_value
from kernels.entry import Scalar
from kernels.lanes import lane
from kernels.lowering import Machine
from kernels.plan import Launch, Plan, PlanBuffer, Ref, launch, sized
from kernels.programs import Setting
from kernels.steps import make_plan
from kernels.tuning import VARIABLE, Tuning
from locks.models import CONFIG, engine, prompt, tokens
from oracle.config import ModelConfig, preset
from oracle.errors import LanelockError
from oracle.model_weights import specs
from reports.plan_floor import floors

HOST = Machine("x86-64-v3", 1, 232448)
H200 = Machine("sm_90a", 132, 232448)
LANES = ("a15", "a8", "q4", "a8+s16+kv16")

#: Control buffers that the host or an earlier pass sets before a program starts.
CONTROL = {
    "slot", "position", "end", "current", "flags", "history", "accepted", "began", "pending", "taken", "replay.none",
    "replay.all", "chunk.tokens", "chunk.length", "chunk.position", "chunk.before", "chunk.paired", "chunk.last",
}  # fmt: skip
#: What one program leaves for the next: hidden rows for the draft head, drafts, what a replay reads, a carried row.
HANDED_ON = {
    "prefill.next": {"chunk.hidden"},
    "draft": {"hidden"},
    "draft.fill": {"hidden"},
    "verify": {"drafts"},
    "step": set(),
    "prefill.first": set(),
    "draft.logits": {"draft.hidden"},
}


def plan(config: ModelConfig, name: str, machine: Machine, B: int, chunk: int, drafts: int) -> Plan:
    """A plan for 512 positions."""
    return make_plan(Setting(config, lane(name), B, B, 512, machine, Tuning()), chunk, drafts)


#: Lanes of plans: with those of LANES the one whose prefill goes through the chunked delta rule.
PLANNED = (*LANES, "a8+delta")
SMALL = [plan(CONFIG, name, m, B, 7, k) for name in PLANNED for m in (HOST, H200) for B, k in ((1, 0), (3, 2), (10, 4))]
BIG = [
    plan(preset("qwen3.8-27b"), name, H200, B, 512, k)
    for name, B, k in (("a15", 1, 1), ("a8", 32, 0), ("q4", 8, 4), ("a8+s16+kv16", 32, 1))
]
PLANS = SMALL + BIG


def programs(p: Plan) -> Iterable[tuple[str, tuple[Launch, ...]]]:
    """The programs of a decode, without those that load."""
    return [(name, items) for name, items in p.programs.items() if not name.startswith("load.")]


def kept(name: str) -> bool:
    """Whether a buffer holds a value before any program runs: weights, tables, state, control."""
    return name.startswith(("w.", "state.", "ring.", "keys.", "values.")) or name in CONTROL | {"cosine", "sine"}


def inputs(item: Launch) -> list[str]:
    """Buffers whose value a launch needs; pick_rows leaves an absent sequence's row as it was, whatever it was."""
    skipped = item.instance.kernel.name == "pick_rows"
    return [u.ref.buffer for u in item.uses if u.reads and u.extent and not (u.writes and skipped)]


class TestReads:
    """What a launch reads."""

    def test_was_written_before_it(self) -> None:
        """By an earlier launch of its program; or it is weights, state, control, or handed on by the program before.

        Red: a buffer misspelt, two launches swapped, fault 17 (a checkpoint nobody wrote).
        """
        unwritten = []
        for p in PLANS:
            for name, items in programs(p):
                written: set[str] = set(HANDED_ON.get(name, ()))
                for item in items:
                    needed = [b for b in inputs(item) if not kept(b) and not (name == "commit" and b[:5] == "keep.")]
                    unwritten += [(name, item.label, b) for b in needed if b not in written]
                    written.update(item.writes)

        assert unwritten == []

    def test_covers_no_more_than_was_written(self) -> None:
        """A scratch buffer is never read further than the launch before it wrote.

        Red: a row count that shrank between producer and consumer, planes read that a projection did not write.
        """
        beyond = []
        for p in PLANS:
            for name, items in programs(p):
                reach: dict[str, int] = {}
                for item in items:
                    for use in item.uses:
                        end = use.ref.offset + use.extent
                        buffer = use.ref.buffer
                        if use.reads and buffer in reach and not use.writes and end > reach[buffer]:
                            beyond.append((name, item.label, buffer, end, reach[buffer]))
                        if use.writes and not kept(buffer):
                            reach[buffer] = max(end, use.ref.offset and reach.get(buffer, 0))

        assert beyond == []


class TestSizes:
    """Sizes of buffers."""

    def test_hold_the_widest_user(self) -> None:
        """Every use fits its buffer; the largest fills scratch exactly.

        Red: fault 5 (split-K planes sized before the widest user was known), fault 4 (an array of one for B sequences).
        """
        for p in PLANS:
            widest: Counter[str] = Counter()
            for items in p.programs.values():
                for use in (u for item in items for u in item.uses):
                    widest[use.ref.buffer] = max(widest[use.ref.buffer], use.ref.offset + use.extent)
            wrong = [b.name for b in p.buffers.values() if b.elements < widest[b.name]]
            loose = [b.name for b in p.buffers.values() if b.kind == "scratch" and b.elements != widest[b.name]]

            assert (wrong, loose) == ([], [])

    def test_hold_the_whole_context_of_the_27b(self) -> None:
        """16 sequences of 262144 positions: 16 layers of keys and values with more elements each than an int counts.

        Every number that a launch is given fits its C type. Red: a size in 32 bits.
        """
        full = Setting(preset("qwen3.8-27b"), lane("a8+s16+kv16"), 16, 16, 262144, H200, Tuning())
        p = make_plan(full, 512, 1)
        caches = [b.elements for b in p.buffers.values() if re.fullmatch(r"(keys|values)\.\d+", b.name)]
        used = [(u, p.buffers[u.ref.buffer]) for items in p.programs.values() for item in items for u in item.uses]

        assert caches == [16 * 4 * (262144 + 4) * 256] * 2 * 16
        assert [u for u, b in used if u.ref.offset + u.extent > b.elements] == []
        for item in itertools.chain(*p.programs.values()):
            for a in item.instance.kernel.args:
                assert not isinstance(a, Scalar) or scalar_value(item.dims, a) is not None

    def test_are_refused_where_a_declared_buffer_is_too_small(self) -> None:
        """A use beyond a declared buffer, or of another dtype, is refused with program, launch and buffer."""
        item = launch("x", "set_positions", {"start": Ref("start"), "positions": Ref("at")}, {"B": 4, "T": 2})

        with pytest.raises(LanelockError, match="p: x touches 8 elements of at, which has 7"):
            sized({"p": [item]}, [PlanBuffer("at", "i32", 7, "state")])
        with pytest.raises(LanelockError, match="p: x takes at as i32, it is f32"):
            sized({"p": [item]}, [PlanBuffer("at", "f32", 8, "state")])

    @pytest.mark.parametrize("drafts", [0, 2])
    def test_leave_guards_whole_when_every_program_has_run(self, device: Device, drafts: int) -> None:
        """A decode through all programs changes no byte outside its buffers, poisoned bytes behind scratch included."""
        requests = [Request(prompt(11), 7), Request(prompt(3, 2), 5), Request(prompt(6, 3), 3)]
        with engine(device, Choice("a15", 2, 20, 4, drafts)) as e:
            streams = decode(e, requests)
            for memory in e.memory.values():
                device.check(memory)

        assert [len(t) for t in tokens(streams)] == [7, 5, 3]

    def test_a_buffer_one_element_short_is_out_of_bounds(self, device: Device) -> None:
        """The host device names the buffer when scratch is an element too small (what fault 5 would do)."""
        if device.properties.kind != "host":
            pytest.skip("not run: guard pages are the host device's")
        with engine(device, Choice("a15", 2, 20, 4)) as e:
            short = dict(e.memory)
            whole = e.plan.buffers["logits"]
            short["logits"] = device.alloc("logits", whole.nbytes - 4, 256)
            broken = dataclasses.replace(e, memory=short)
            with pytest.raises(OutOfBounds, match="logits"):  # noqa: PT012  # the kernel or the check of guards sees it
                decode(broken, [Request(prompt(3), 4), Request(prompt(3, 2), 4)])
                device.check(short["logits"])


class TestCensus:
    """Which weights a program reads."""

    @pytest.mark.parametrize("program", ["step", "verify", "prefill.next"])
    def test_every_tensor_is_read_once_whatever_the_rows(self, program: str) -> None:
        """A step reads each weight once, a verify once for all its k + 1 rows, a chunk once for all its tokens.

        Read twice are the embedding of a tied model and the head and embedding that the draft head shares. Red: a
        projection lowered twice or not at all, a loop over rows of launches.
        """
        for p in (q for q in PLANS if program in q.programs):
            uses = [u.ref.buffer for item in p.programs[program] for u in item.uses]
            read = Counter(b for b in uses if b.startswith("w."))
            config = preset("qwen3.8-27b") if "w.layers.63.an" in p.buffers else CONFIG
            tensors = {tensor_of(b) for b in read}
            wanted = {n for n in specs(config) if not n.startswith("mtp.")}
            shared = {"emb", "Wout"} | {n for n in specs(config) if n.startswith("mtp.")}
            twice = {tensor_of(b) for b, n in read.items() if n > 1} - shared

            assert tensors - {n for n in tensors if n.startswith("mtp.")} == wanted
            assert twice == set()

    def test_a_reader_of_planes_is_the_form_for_planes(self) -> None:
        """Where K was split the reader adds planes, elsewhere it reads one; a spread norm has blocks to spread over.

        Red: the planed form for one plane, which reads the same bits with more instructions.
        """
        forms = Counter()
        for item in (i for p in PLANS for items in p.programs.values() for i in items):
            name = item.instance.kernel.name
            if name.startswith(("add_rms_norm", "swiglu")):
                many = item.dims["planes"] > 1, item.dims.get("parts", 1) > 1
                assert ("planes" in name, "spread" in name) == many, name
                forms[name] += 1

        assert len(forms) >= 4, f"only {sorted(forms)} are in any plan"

    def test_every_token_comes_from_one_kernel(self) -> None:
        """Steps, verifies, prompts and drafts pick by the kernel that handed case 36 holds. Red: a pick of its own."""
        picked: set[str] = set()
        for p in PLANS:
            for _, items in programs(p):
                writers = [i for i in items if {"chunk.picks", "step.picks", "drafts"} & set(i.writes)]
                picked |= {i.instance.kernel.name for i in writers}

        assert picked == {"greedy_pick_parts"}

    def test_no_program_has_more_launches_for_more_rows(self) -> None:
        """Batch, chunk width and drafts change shapes, never the number of launches of a step, verify or chunk.

        Attention alone is one launch more where blocks share a context: its chunks are combined.
        """

        def count(p: Plan, program: str) -> int:
            return len([item for item in p.programs[program] if not item.label.endswith("attention.split")])

        for name in ("step", "prefill.next"):
            counts = {
                (lane_, B): count(plan(CONFIG, lane_, HOST, B, 7, 0), name)
                for lane_, B in itertools.product(LANES, (1, 4, 16, 64))
            }
            assert len(set(counts.values())) == 1, counts
        verify = [plan(CONFIG, "a8", HOST, 2, 7, k) for k in (1, 2, 3, 4)]
        assert len({count(p, "verify") for p in verify}) == 1


class TestGeometry:
    """Launches of the 27B's plans."""

    def test_fit_a_grid(self) -> None:
        """No launch of the 27B's plans exceeds a grid axis, a block, or its shared memory."""
        for p in BIG:
            for name, items in programs(p):
                for item in items:
                    g = item.geometry
                    fits = g.grid[0] < 2**31 and max(g.grid[1:]) <= 65535 and np.prod(g.block) <= 1024
                    assert fits, (name, item.label, g)
                    assert g.smem <= H200.shared_per_block, (name, item.label, g)


class TestFloors:
    """Bytes that a launch moves, and the least time of them."""

    def test_are_those_of_what_a_launch_touches(self) -> None:
        """Weights whole, of a state, a cache, an embedding and angles as much as three sequences touch; 1 GB a second.

        Red: a pool of states in place of the batch's, a table whole, the format's width taken for another's.
        """
        B, c = 3, CONFIG
        p = make_plan(Setting(c, lane("a8+s16+kv16"), B, 9, 512, HOST, Tuning()), 7, 1)
        found = {f.label: f for f in floors(p.programs["step"], 1.0)}
        heads, cache = c.q_heads * c.head_dim * 4, c.kv_heads * 516 * c.head_dim * 2
        state = c.v_heads * c.gdn_dim**2 * 2
        expected = {
            "embed": (B * (4 + c.d + c.d // 32 * 2), B * c.d * 4),
            "Wout": (c.vocab * (c.d + c.d // 32 * 2) + B * (c.d + c.d // 32 * 4), B * c.vocab * 4),
            "layers.3.attention": (B * (heads + 2 * cache + 3 * 4), B * heads),
        }

        assert {label: (found[label].read, found[label].written) for label in expected} == expected
        assert B * state < found["layers.0.scan"].read < 1.2 * B * state
        assert found["layers.3.rope"].written == B * heads + 2 * B * c.kv_heads * c.head_dim * 2
        assert found["layers.3.rope"].read < B * 4 * (2 * c.q_heads + 2 * c.kv_heads + 2) * c.head_dim
        assert found["accept"].read < B * 64
        assert all(f.floor == (f.read + f.written) / 1000 for f in found.values())

    def test_is_a_second_for_what_a_second_moves(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`lanelock plan` adds them up: half the bandwidth is twice the time, and the launches are the program's.

        Red: a unit lost between bytes, GB/s and milliseconds.
        """
        printed = []
        for bandwidth in ("1000", "500"):
            assert main(["plan", "--config", "mini", "--bandwidth", bandwidth, "--json"]) == 0
            rows = json.loads(capsys.readouterr().out)["launches"]
            printed.append([row["floor"] for row in rows])
            assert main(["plan", "--config", "mini", "--bandwidth", bandwidth]) == 0
            last = capsys.readouterr().out.splitlines()[-1]
            moved = sum(row["read"] + row["written"] for row in rows)
            assert last == (f"{len(rows)} launches, {moved / 1e9:.3f} GB, "
                            f"at least {moved / float(bandwidth) / 1e6:.3f} ms")  # fmt: skip  # one text
            assert main(["plan", "--config", "mini", "--bandwidth", bandwidth, "--summary"]) == 0
            kernels = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
            summed: dict[str, tuple[int, float, float]] = {}
            for row in rows:
                n, bytes_, time = summed.get(row["kernel"], (0, 0, 0))
                summed[row["kernel"]] = n + 1, bytes_ + row["read"] + row["written"], time + row["floor"]
            assert [line[-3:] for line in kernels] == [
                [str(n), f"{bytes_ / 1e6:.2f}", f"{time:.1f}"] for n, bytes_, time in summed.values()
            ]

        assert printed[1] == [2 * t for t in printed[0]]


class TestPurity:
    """A plan is made of its setting alone."""

    def test_the_same_setting_gives_the_same_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the environment says; and nothing of it can be changed. Red: a knob that is not in the setting."""
        first = plan(CONFIG, "a8", H200, 2, 7, 1)
        monkeypatch.setenv(VARIABLE, json.dumps({"stream_rows": 0, "warps": 1}))

        assert plan(CONFIG, "a8", H200, 2, 7, 1) == first
        for part, field in ((first, "programs"), (first.programs["step"][0], "label"), (Tuning(), "warps")):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field, None)


class TestRefusals:
    """What no plan is made for."""

    @pytest.mark.parametrize(("changes", "sentence"), [
        ({"chunk": 0}, "a chunk of 0 tokens is not between 1 and the cache's 512 positions"),
        ({"chunk": 513}, "a chunk of 513 tokens"),
        ({"drafts": 5}, "5 drafts a step are not between 0 and 4"),
        ({"drafts": -1}, "-1 drafts"),
        ({"drafts": 1, "config": dataclasses.replace(CONFIG, mtp=False)}, "model lock has no draft head"),
        ({"config": dataclasses.replace(CONFIG, context=511)}, "512 positions exceed the context of lock, 511"),
        ({"B": 0}, "a batch of 0 sequences is not between 1 and 4096"),
        ({"B": 4097}, "a batch of 4097 sequences"),
        ({"chunk": 512, "B": 4096}, "rows"),
    ])  # fmt: skip
    def test_are_named_in_one_sentence(self, changes: dict[str, object], sentence: str) -> None:
        """Chunk, drafts, draft head, context, batch and grid limits are refused before anything touches a device."""
        given = {"config": CONFIG, "name": "a15", "machine": HOST, "B": 1, "chunk": 7, "drafts": 0} | changes

        with pytest.raises(LanelockError) as refusal:
            plan(**given)  # type: ignore[arg-type]  # a mapping of the arguments
        assert sentence in str(refusal.value)
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize(
        ("refs", "sentence"),
        [
            ({"x": Ref("a"), "y": Ref("b")}, "plan: here: add needs a buffer for its argument z"),
            ({"x": Ref("a"), "y": None, "z": Ref("c")}, "plan: here: add needs a buffer for its argument y"),
            ({"x": Ref("a"), "y": Ref("b"), "z": Ref("c"), "w": Ref("d")}, "plan: here: add has no argument w"),
        ],
    )
    def test_arguments_that_do_not_fit_are_named(self, refs: dict[str, Ref | None], sentence: str) -> None:
        """A buffer that is missing, null or unknown is told with launch and kernel. Red: a null pointer launched."""
        with pytest.raises(LanelockError, match=f"^{sentence}$"):
            launch("here", "add", refs, {"rows": 1, "K": 32})

    @pytest.mark.parametrize("name", ["a9", "a15+s8", "a15+s16+s16", "", "fp8c"])
    def test_an_unknown_lane_is_named(self, name: str) -> None:
        """A lane is a base and extras, each at most once."""
        with pytest.raises(LanelockError, match="lane"):
            lane(name)
