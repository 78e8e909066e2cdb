"""Number formats of weights, activations, state and cache: encode and decode, bit for bit as the contract says."""

from oracle.formats.activations import (
    A8,
    A15,
    a8_decode,
    a8_encode,
    a15_decode,
    a15_encode,
    a15_join,
    a15_split,
)
from oracle.formats.e4m3 import (
    E4M3Blocks,
    E4M3Rows,
    e4m3_blocks_decode,
    e4m3_blocks_encode,
    e4m3_decode,
    e4m3_encode,
    e4m3_pair_decode,
    e4m3_pair_encode,
    e4m3_rows_decode,
    e4m3_rows_encode,
)
from oracle.formats.half import bf16_decode, bf16_encode, bf16_round, f16_decode, f16_encode, f16_round
from oracle.formats.q4 import Q4, q4_decode, q4_from_q8_0, q4_pack, q4_unpack
from oracle.formats.q8_0 import BLOCK, Q8_0, q8_0_decode, q8_0_encode, round_half_away

__all__ = [
    "A8",
    "A15",
    "BLOCK",
    "Q4",
    "Q8_0",
    "E4M3Blocks",
    "E4M3Rows",
    "a8_decode",
    "a8_encode",
    "a15_decode",
    "a15_encode",
    "a15_join",
    "a15_split",
    "bf16_decode",
    "bf16_encode",
    "bf16_round",
    "e4m3_blocks_decode",
    "e4m3_blocks_encode",
    "e4m3_decode",
    "e4m3_encode",
    "e4m3_pair_decode",
    "e4m3_pair_encode",
    "e4m3_rows_decode",
    "e4m3_rows_encode",
    "f16_decode",
    "f16_encode",
    "f16_round",
    "q4_decode",
    "q4_from_q8_0",
    "q4_pack",
    "q4_unpack",
    "q8_0_decode",
    "q8_0_encode",
    "round_half_away",
]
