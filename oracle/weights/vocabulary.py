"""The smallest vocabulary that a byte-level BPE tokenizer accepts."""

NORMAL, UNUSED = 1, 5  # ggml's token types


def byte_vocabulary(size: int) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Tokens, their types, and merges.

    Shapes: `size` tokens: one for each byte while there is room, then placeholders that no text gives.
    Units:  bytes are written as GPT-2 writes them: printable Latin-1 as itself, others as U+0100 and on, in order.
    Source: Radford et al. 2019, encoder.py. Raises nothing.
    """
    tokens = [_spelling()[byte] for byte in range(min(size, 256))]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    kinds = (NORMAL,) * min(size, 256) + (UNUSED,) * (size - min(size, 256))
    # engines refuse an empty list; this one makes a token that does not exist, so it is never applied.
    return tuple(tokens), kinds, ("\u0120 \u0120",)


def _spelling() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]
