"""Locks: containers that lie or are cut are refused by name, and honest ones give the right bytes (case 38)."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES

from locks.oracle.checkpoints import PEER, PEER_GGUF, UINT32, Lie, floats, plain_safetensors, text, two_tensors
from oracle.errors import LanelockError
from oracle.weights.gguf_file import open_gguf, round_up
from oracle.weights.gguf_types import TYPES
from oracle.weights.safetensors_file import open_safetensors


def with_header_of(size: int, alignment: int) -> Lie:
    """A file of one vector whose header ends at exactly that byte."""
    align = ("general.alignment", UINT32, struct.pack("<I", alignment))
    lie = Lie(tensors=[("a", (8,), 0, 0, floats(*range(1, 9)))], keys=[align], alignment=alignment)
    fill = size - len(lie.header()) - (8 + len("fill") + 4 + 8)
    lie.keys.append(("fill", 8, text("x" * fill)))
    assert len(lie.header()) == size
    return lie


class TestGgufDataStart:
    """Where the tensors of a GGUF begin."""

    @pytest.mark.parametrize(("end", "alignment", "start"),
                             [(1040, 16, 1040), (1040, 32, 1056), (1040, 64, 1088), (1056, 32, 1056)])
    def test_data_start_is_the_next_aligned_byte(self, tmp_path: Path, end: int, alignment: int, start: int) -> None:
        """A header that ends at 1040 puts data at 1040, 1056, 1088 for 16, 32, 64; one that ends at 1056 at 1056.

        Red: a round-up that adds a whole unit when already aligned, or a default of 32 in place of the key.
        """
        file = open_gguf(with_header_of(end, alignment).to(tmp_path / "a.gguf"))

        assert (file.data_start, file.tensors["a"].start) == (start, start)

    @pytest.mark.parametrize("alignment", [16, 32, 64])
    def test_bytes_are_those_of_the_tensor(self, tmp_path: Path, alignment: int) -> None:
        """The values behind an aligned data start are the tensor's own."""
        file = open_gguf(with_header_of(1040, alignment).to(tmp_path / "a.gguf"))

        assert file.blocks("a").view("<f4").tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]

    def test_offsets_count_from_the_data_start(self, tmp_path: Path) -> None:
        """Tensor b gives b's values, not those at its offset in the file.  Red: offsets taken from the file's start."""
        file = open_gguf(two_tensors().to(tmp_path / "a.gguf"))

        assert file.blocks("b").view("<f4").tolist() == [[9, 10, 11, 12, 13, 14, 15, 16]]

    def test_round_up_keeps_multiples(self) -> None:
        """Rounding up equals a search for the next multiple."""
        for at in range(200):
            assert round_up(at, 32) == next(m for m in range(at, at + 32) if m % 32 == 0)


def aligned(value: bytes, kind: int = UINT32) -> Lie:
    """Two tensors and an alignment key of those bytes."""
    return two_tensors(keys=[("general.alignment", kind, value)])


VECTOR = floats(*range(8))
ATTACKS: dict[str, tuple[Lie, str]] = {
    "alignment 0": (aligned(struct.pack("<I", 0)), "alignment 0"),
    "alignment 24": (aligned(struct.pack("<I", 24)), "alignment 24"),
    "alignment -1": (aligned(struct.pack("<i", -1)), "alignment 4294967295"),
    "alignment 2^31": (aligned(struct.pack("<I", 2**31)), "alignment 2147483648"),
    "alignment signed": (aligned(struct.pack("<i", 32), kind=5), "must be uint32"),
    "version swapped": (two_tensors(version=struct.pack(">I", 3)), "big-endian"),
    "magic swapped": (two_tensors(magic=b"FUGG"), "big-endian"),
    "version 1": (two_tensors(version=struct.pack("<I", 1)), "version 1"),
    "version 4": (two_tensors(version=struct.pack("<I", 4)), "version 4"),
    "not GGUF": (two_tensors(magic=b"GGML"), "not a GGUF"),
    "tensor count": (two_tensors(tensor_count=2**63), "9223372036854775808 tensors"),
    "key count": (two_tensors(key_count=2**40), "metadata keys"),
    "n_dims 9": (two_tensors(dims_count=9), "9 dimensions"),
    "n_dims 0": (two_tensors(dims_count=0), "0 dimensions"),
    "n_dims 2^32-1": (two_tensors(dims_count=2**32 - 1), "4294967295 dimensions"),
    "string length": (two_tensors(keys=[("k", 8, struct.pack("<Q", 2**64 - 1) + b"abc")]), "needs 184467440737095"),
    "array count": (two_tensors(keys=[("k", 9, struct.pack("<IQ", 4, 2**62))]), "elements of 'k'"),
    "array count by a little": (two_tensors(keys=[("k", 9, struct.pack("<IQ", 4, 40))]), "claims 40 elements of 'k'"),
    "string array": (two_tensors(keys=[("k", 9, struct.pack("<IQ", 8, 2**61))]), "strings of 'k'"),
    "string in array": (two_tensors(keys=[("k", 9, struct.pack("<IQQ", 8, 1, 2**63))]), "bytes of a string of 'k'"),
    "nested array": (two_tensors(keys=[("k", 9, struct.pack("<IQ", 9, 1))]), "array of value type 9"),
    "value type": (two_tensors(keys=[("k", 99, b"")]), "value type 99"),
    "boolean 2": (two_tensors(keys=[("k", 7, b"\2")]), "boolean of 2"),
    "key twice": (two_tensors(keys=[("k", 4, bytes(4)), ("k", 4, bytes(4))]), "'k' twice"),
    "key not UTF-8": (two_tensors(keys=[("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")]), "not UTF-8"),
    "offset near 2^64": (Lie([("a", (8,), 0, 2**64 - 32, VECTOR)]), "tensor 'a' ends at byte"),
    "offset unaligned": (Lie([("a", (8,), 0, 4, VECTOR)]), "not a multiple of the alignment"),
    "overlap": (Lie([("a", (8,), 0, 0, VECTOR), ("b", (8,), 0, 0, VECTOR)]), "'b' at offset 0 overlaps"),
    "hole": (Lie([("a", (8,), 0, 32, floats(*range(16)))]), "hole of 32 bytes before tensor 'a'"),
    "name twice": (Lie([("a", (8,), 0, 0, VECTOR), ("a", (8,), 0, 32, VECTOR)]), "'a' twice"),
    "shape product": (Lie([("a", (2**32, 2**32), 0, 0, floats(1))]), "tensor 'a' ends at byte"),
    "shape zero": (Lie([("a", (0,), 0, 0, b"")]), "zero in its shape"),
    "unknown type": (Lie([("a", (8,), 77, 0, VECTOR)]), "unknown type 77"),
    "half a block": (Lie([("a", (16,), 8, 0, bytes(34))]), "rows of 16"),
    "long name": (Lie([("a" * 65, (8,), 0, 0, VECTOR)]), "65 bytes"),
    "empty name": (Lie([("", (8,), 0, 0, VECTOR)]), "0 bytes"),
    "trailing": (Lie([("a", (8,), 0, 0, floats(*range(16)))]), "32 bytes after its last tensor"),
}


class TestLyingGguf:
    """GGUF files that say what is not so."""

    @pytest.mark.parametrize("name", ATTACKS)
    def test_is_refused_with_what_and_where(self, tmp_path: Path, name: str) -> None:
        """Each lie ends in one error that names the file and the fault."""
        lie, fault = ATTACKS[name]
        path = lie.to(tmp_path / "lie.gguf")

        with pytest.raises(LanelockError) as caught:
            open_gguf(path)
        assert str(path) in str(caught.value)
        assert fault in str(caught.value)

    def test_every_cut_is_refused(self, tmp_path: Path) -> None:
        """A file cut anywhere, in its header or its last tensor, is refused; so is an empty one.

        Only bytes of the last padding may be missing, and this file has none.
        """
        whole = two_tensors(keys=[("k", 8, text("value"))]).to(tmp_path / "a.gguf").read_bytes()
        cut = tmp_path / "cut.gguf"
        for length in range(len(whole)):
            cut.write_bytes(whole[:length])
            with pytest.raises(LanelockError, match=r"cut\.gguf"):
                open_gguf(cut)

    def test_last_padding_may_be_missing(self, tmp_path: Path) -> None:
        """A last tensor that is no multiple of the alignment reads the same with and without its padding."""
        lie = Lie([("a", (3,), 0, 0, floats(1, 2, 3))])
        path = lie.to(tmp_path / "a.gguf")
        path.write_bytes(path.read_bytes()[:-20])

        assert open_gguf(path).blocks("a").view("<f4").tolist() == [[1, 2, 3]]

    def test_type_table_is_that_of_the_gguf_package(self) -> None:
        """Every element type that we measure has the block and the bytes that the gguf package states."""
        theirs = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}

        assert {kind: (own.elements, own.size) for kind, own in TYPES.items()} == {kind: theirs[kind] for kind in TYPES}


def entry(start: int = 0, stop: int = 16, shape: object = None, dtype: object = "F32") -> dict[str, Any]:
    """A header's entry for four float32."""
    return {"dtype": dtype, "shape": [4] if shape is None else shape, "data_offsets": [start, stop]}


ONE = b'"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'
SAFETENSORS: dict[str, tuple[dict[str, Any] | bytes, bytes, int | None, str]] = {
    "length beyond file": ({"a": entry()}, bytes(16), 10**6, "claims a header of 1000000 bytes, but only"),
    "length near 2^64": ({"a": entry()}, bytes(16), 2**64 - 1, "above the limit"),
    "not JSON": (b"{", b"", None, "not JSON"),
    "not an object": (b"[]", b"", None, "not a JSON object"),
    "not UTF-8": (b'{"\xff": 1}', b"", None, "not JSON"),
    "deep": (b"[" * 100_000, b"", None, "not JSON"),
    "long integer": (b"{" + ONE.replace(b"4", b"9" * 5000) + b"}", bytes(16), None, "not JSON"),
    "twice": (b'{"__metadata__":{},' + ONE + b"," + ONE + b"}", bytes(16), None, "'a' occurs twice"),
    "type": ({"a": entry(dtype="F33")}, bytes(16), None, "unknown type 'F33'"),
    "type no string": ({"a": entry(dtype=[])}, bytes(16), None, "unknown type"),
    "negative shape": ({"a": entry(shape=[-4])}, bytes(16), None, "impossible shape"),
    "true shape": ({"a": entry(shape=[True])}, bytes(4), None, "impossible shape"),
    "fraction": ({"a": entry(shape=[4.0])}, bytes(16), None, "impossible shape"),
    "product wraps": ({"a": entry(shape=[2**32, 2**32, 4])}, bytes(16), None, "does not fill"),
    "nine dimensions": ({"a": entry(shape=[1] * 8 + [4])}, bytes(16), None, "impossible shape"),
    "shape and bytes": ({"a": entry(shape=[5])}, bytes(16), None, "does not fill its 16 bytes"),
    "beyond the end": ({"a": entry(0, 20, [5])}, bytes(16), None, "tensor 'a' spans bytes"),
    "offset near 2^64": ({"a": entry(2**64 - 16, 2**64)}, bytes(16), None, "impossible offsets"),
    "reversed": ({"a": entry(16, 0)}, bytes(16), None, "spans bytes"),
    "overlap": ({"a": entry(), "b": entry(8, 24)}, bytes(24), None, "'b' overlaps tensor 'a'"),
    "same bytes": ({"a": entry(), "b": entry()}, bytes(16), None, "overlaps"),
    "hole": ({"a": entry(), "b": entry(20, 36)}, bytes(36), None, "hole of 4 bytes before tensor 'b'"),
    "hole first": ({"a": entry(4, 20)}, bytes(20), None, "hole of 4 bytes"),
    "trailing": ({"a": entry()}, bytes(17), None, "1 bytes after tensor 'a'"),
    "cut": ({"a": entry()}, bytes(15), None, "spans bytes"),
    "extra field": ({"a": {**entry(), "more": 1}}, bytes(16), None, "exactly dtype, shape and data_offsets"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [4]}}, bytes(16), None, "exactly dtype, shape and data_offsets"),
    "metadata": ({"__metadata__": {"a": 1}, "a": entry()}, bytes(16), None, "not a map of strings"),
}


VALUES = {0: ("<B", 200), 1: ("<b", -3), 2: ("<H", 60000), 3: ("<h", -300), 4: ("<I", 2**32 - 1), 5: ("<i", -(2**31)),
          6: ("<f", 0.5), 7: ("<?", False), 10: ("<Q", 2**64 - 1), 11: ("<q", -(2**63)), 12: ("<d", 0.1)}


class TestGgufMetadata:
    """Values of every type."""

    @pytest.mark.parametrize("kind", VALUES)
    def test_every_scalar_and_array(self, tmp_path: Path, kind: int) -> None:
        """A scalar and an array of each type are read as written; a false boolean too."""
        form, value = VALUES[kind]
        raw = struct.pack(form, value)
        array = struct.pack("<IQ", kind, 2) + raw + raw
        file = open_gguf(two_tensors(keys=[("one", kind, raw), ("two", 9, array)]).to(tmp_path / "a.gguf"))

        assert (file.metadata["one"], file.metadata["two"]) == (value, (value, value))

    @pytest.mark.parametrize(("array", "read"), [
        (struct.pack("<IQ", 8, 2) + text("ab") + text(""), 2), (struct.pack("<IQ", 8, 1) + text("abc"), 1),
        (struct.pack("<IQB", 0, 1, 7), (7,)), (struct.pack("<IQ", 12, 0), ()), (struct.pack("<IQ", 8, 0), 0)])
    def test_array_may_end_the_file(self, tmp_path: Path, array: bytes, read: object) -> None:
        """An array whose last byte is the file's last is whole; of strings only the count is kept."""
        path = tmp_path / "a.gguf"
        path.write_bytes(Lie(keys=[("k", 9, array)]).header())

        assert open_gguf(path).metadata == {"k": read}

    def test_longest_name_is_read(self, tmp_path: Path) -> None:
        """A tensor name of 64 bytes and four dimensions are the most that is allowed."""
        name = "n" * 64
        file = open_gguf(Lie([(name, (2, 1, 2, 2), 0, 0, floats(*range(8)))]).to(tmp_path / "a.gguf"))

        assert file.tensors[name].shape == (2, 2, 1, 2)


class TestLyingSafetensors:
    """Safetensors files that say what is not so."""

    @pytest.mark.parametrize("name", SAFETENSORS)
    def test_is_refused_with_what_and_where(self, tmp_path: Path, name: str) -> None:
        """Each lie ends in one error that names the file and the fault."""
        header, data, length, fault = SAFETENSORS[name]
        path = plain_safetensors(tmp_path / "lie.safetensors", header, data, length)

        with pytest.raises(LanelockError) as caught:
            open_safetensors(path)
        assert str(path) in str(caught.value)
        assert fault in str(caught.value)

    def test_every_cut_is_refused(self, tmp_path: Path) -> None:
        """A file cut anywhere is refused."""
        whole = plain_safetensors(tmp_path / "a", {"a": entry(), "b": entry(16, 32)}, bytes(32)).read_bytes()
        cut = tmp_path / "cut"
        for length in range(len(whole)):
            cut.write_bytes(whole[:length])
            with pytest.raises(LanelockError, match="cut"):
                open_safetensors(cut)

    def test_header_may_fill_the_file_up_to_the_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A header that ends the file, and is as long as the limit allows, is read; one byte more is refused."""
        path = plain_safetensors(tmp_path / "a", b"{}", b"")
        monkeypatch.setattr("oracle.weights.safetensors_file.MAX_HEADER", 2)
        assert open_safetensors(path).entries == {}
        with pytest.raises(LanelockError, match="above the limit of 2"):
            open_safetensors(plain_safetensors(tmp_path / "a", b"{ }", b""))

    def test_no_elements_and_eight_dimensions_are_read(self, tmp_path: Path) -> None:
        """A tensor without elements takes no bytes, and eight dimensions are the most that is read."""
        header = {"none": entry(0, 0, [0, 3]), "many": entry(0, 16, [1, 1, 1, 1, 1, 1, 1, 4])}
        file = open_safetensors(plain_safetensors(tmp_path / "a", header, floats(1, 2, 3, 4)))

        assert (file.array("none").shape, file.array("many").ravel().tolist()) == ((0, 3), [1, 2, 3, 4])

    def test_order_of_the_header_is_free(self, tmp_path: Path) -> None:
        """Tensors listed in another order than they lie give their own values."""
        data = floats(1, 2, 3, 4, 5, 6, 7, 8)
        file = open_safetensors(plain_safetensors(tmp_path / "a", {"b": entry(16, 32), "a": entry()}, data))

        assert (file.array("a").tolist(), file.array("b").tolist()) == ([1, 2, 3, 4], [5, 6, 7, 8])


class TestHonestContainers:
    """Files as others write them."""

    def test_peer_files_open(self) -> None:
        """The peers' files, written by the converter and by the published package, are accepted whole."""
        assert len(open_gguf(PEER_GGUF).tensors) == 124
        assert len(open_safetensors(PEER / "model.safetensors").entries) == 124

    def test_nothing_is_read_before_the_check(self, tmp_path: Path) -> None:
        """A header that claims a petabyte is refused without making room for it.

        Red: any allocation by a count or a shape that the file states.
        """
        path = Lie([("a", (2**47,), 0, 0, floats(1))]).to(tmp_path / "a.gguf")

        with pytest.raises(LanelockError, match="ends at byte"):
            open_gguf(path)

    def test_missing_file_and_folder_are_named(self, tmp_path: Path) -> None:
        """A path that is no file is one sentence, not a traceback."""
        for opener in (open_gguf, open_safetensors):
            with pytest.raises(LanelockError, match="is not a file"):
                opener(tmp_path)
            (tmp_path / "a").write_bytes(b"")
            with pytest.raises(LanelockError, match="is empty"):
                opener(tmp_path / "a")
            (tmp_path / "a").write_bytes(b"G")
            with pytest.raises(LanelockError, match=r"1 bytes long|1 are left"):
                opener(tmp_path / "a")

    def test_values_are_those_of_the_published_package(self) -> None:
        """Every tensor of the peers' file equals what the safetensors package reads."""
        from safetensors.numpy import load_file

        theirs = load_file(PEER / "model.safetensors")
        file = open_safetensors(PEER / "model.safetensors")

        assert theirs.keys() == file.entries.keys()
        assert all(np.array_equal(file.array(name), values) for name, values in theirs.items())
