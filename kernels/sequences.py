"""Arguments that every kernel with a per-sequence state shares: slots, positions, lengths; and head widths.

T tokens of B sequences lie token-major: row t * B + b. Sequence b keeps its state in slot[b] (-1: it takes no part),
its first token has position[b], and only its first length[b] tokens exist.
"""

from collections.abc import Callable

from kernels.entry import Buffer, Dims, Param, Rule, Value
from kernels.rules import GRID_X, between

HEAD_DIMS = Param("D", (32, 64, 128, 256))
CONTEXT = 262144
SEQUENCES = tuple(Buffer(name, "i32", ("B",), "r") for name in ("slot", "position", "length"))

CHUNK_RULES: tuple[Rule, ...] = (
    between("T", 1, GRID_X, "the tokens of a chunk"),
    between("B", 1, 65535, "the sequences that one grid axis can hold"),
    between("slots", 1, GRID_X, "the state pool"),
    Rule(lambda d: int(d["T"]) * int(d["B"]) <= GRID_X, "T * B = {rows} rows exceed a grid axis"),
)


def history_dims(dims: Dims) -> dict[str, Value]:
    """The pitch of a history of `limit` positions and the token behind them."""
    columns = int(dims["limit"]) + 1
    return {"columns": columns, "history_pitch": columns}


def token_dims(extra: Callable[[Dims], dict[str, Value]]) -> Callable[[Dims], Dims]:
    """Derives rows = T * B and what `extra` says."""

    def derive(dims: Dims) -> Dims:
        return {"rows": int(dims["T"]) * int(dims["B"]), **extra(dims)}

    return derive


def head_multiple(total: str, part: str) -> Rule:
    """One head count divides another."""
    return Rule(
        lambda d: int(d[part]) > 0 and int(d[total]) > 0 and int(d[total]) % int(d[part]) == 0,
        f"{total} = {{{total}}} heads must be a positive multiple of {part} = {{{part}}}",
    )
