"""The generator of synthetic Q8_0 weights, one element at a time in Python's integers."""

MASK = 2**64 - 1


def word(key: int, counter: int) -> int:
    """Word `counter` of the stream that starts at key.

    Shapes: none.
    Units:  64-bit integers that wrap.
    Error:  none.
    Source: splitmix64, Steele, Lea & Flood 2014; the text of oracle/weights/synthetic.py.
    """
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def code(key: int, element: int) -> int:
    """Code of one element: a byte of its word as int8, with -128 replaced by -127.

    Shapes: none.
    Units:  multiples of the block's scale.
    Error:  none.
    Source: the text of oracle/weights/synthetic.py.
    """
    byte = word(key, element // 8) >> 8 * (element % 8) & 255
    return max(byte - 256 if byte > 127 else byte, -127)


def scale_bits(key: int, block: int, lowest: int) -> int:
    """Float16 bits of one block's scale: the lowest and up to 127 more.

    Shapes: none.
    Units:  bits of a float16.
    Error:  none.
    Source: the text of oracle/weights/synthetic.py.
    """
    return lowest + (word(key, block) >> 57)
