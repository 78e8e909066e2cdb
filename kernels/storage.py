"""What lives longer than a program: weights in the forms that lowerings read, state, caches, control."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kernels.plan import Launch, PlanBuffer, Ref, launch
from kernels.programs import RING, Setting

STAGE = "load."  # staging buffers of conversions: one tensor at a time


def used_buffers(programs: Mapping[str, Iterable[Launch]]) -> dict[str, str]:
    """Buffer name -> dtype of everything that programs touch."""
    return {u.ref.buffer: u.dtype for launches in programs.values() for item in launches for u in item.uses}


def loads(programs: Mapping[str, Iterable[Launch]]) -> dict[str, tuple[Launch, ...]]:
    """A program `load.NAME` for each projection whose weights are read in a form of their own.

    It reads the tensor's Q8_0 codes and scales from the staging buffers `load.codes` and `load.scales`.
    """
    made: dict[str, tuple[Launch, ...]] = {}
    for launches in programs.values():
        for item in launches:
            for use in item.uses:
                name = use.ref.buffer
                form = name.removeprefix(f"w.{item.label}.")
                if form not in (name, "codes", "scales"):
                    made.setdefault(f"load.{item.label}", _convert(item, form))
    return made


def _convert(item: Launch, form: str) -> tuple[Launch, ...]:
    dims = {"N": item.dims["N"], "K": item.dims["K"]}
    label, home = f"load.{item.label}", f"w.{item.label}."
    codes, scales = Ref(STAGE + "codes"), Ref(STAGE + "scales")
    steps: list[Launch] = []
    if form.startswith("q4"):
        direct = not form.endswith("panels")
        packed = Ref(home + "q4.codes") if direct else Ref(STAGE + "packed")
        packed_scales = Ref(home + "q4.scales") if direct else Ref(STAGE + "packed_scales")
        refs = {"codes": codes, "scales": scales, "packed": packed, "packed_scales": packed_scales}
        steps.append(launch(label, "q8_to_q4", refs, dims))
        codes, scales = packed, packed_scales
    if form.endswith("panels"):
        kernel = "pretile_q4" if form.startswith("q4") else "pretile"
        source = codes if kernel == "pretile_q4" else Ref(STAGE + "bytes")
        steps.append(launch(label, kernel, {"codes": source, "ws": scales, "tiles": Ref(home + form)}, dims))
    return tuple(steps)


def state_buffers(s: Setting, programs: Mapping[str, Iterable[Launch]]) -> list[PlanBuffer]:
    """Recurrent states, rings, caches and tables, at full size for every slot."""
    c = s.config
    cache = s.slots * c.kv_heads * s.context * c.head_dim
    table = s.context * (c.rope_dim // 2)
    found = [PlanBuffer("cosine", "f32", table, "table"), PlanBuffer("sine", "f32", table, "table")]
    for i in range(c.layers):
        if c.is_attention(i):
            found += [PlanBuffer(f"{name}.{i}", s.lane.kv, cache, "state") for name in ("keys", "values")]
        else:
            found.append(PlanBuffer(f"state.{i}", s.lane.state, s.slots * c.v_heads * c.gdn_dim**2, "state"))
            found.append(PlanBuffer(f"ring.{i}", "f32", s.slots * RING * c.conv_channels, "state"))
    if "keys.mtp" in used_buffers(programs):
        found += [PlanBuffer(f"{name}.mtp", s.lane.kv, cache, "state") for name in ("keys", "values")]
    used = used_buffers(programs)
    return [replace(b) for b in found if b.name in used]
