"""One kernel, one room: the files of a room share its stem, and the catalogue knows every one of them."""

import ast
import importlib
import re

import pytest

from kernels.catalogue import KERNELS, ROOMS, by_room, kernel
from kernels.entry import Kernel
from kernels.places import ROOT, page, places
from oracle.errors import LanelockError

SOURCES = sorted(path.stem for path in (ROOT / "kernels").glob("*.cu"))


@pytest.mark.parametrize("room", ROOMS)
class TestFiles:
    """A room is five files of one stem; lowerings of one operation share its truth, contract and locks."""

    def test_are_all_there_and_hold_every_kernel(self, room: str) -> None:
        """The five files exist, and the locks name every kernel of the room. Red: a kernel that no lock runs."""
        missing = [str(path) for path in places(room).values() if not (ROOT / path).is_file()]
        entries = vars(importlib.import_module(f"kernels.{room}"))
        locks = ast.parse((ROOT / places(room)["locks"]).read_text())
        named = {node.id for node in ast.walk(locks) if isinstance(node, ast.Name)}
        quoted = {node.value for node in ast.walk(locks) if isinstance(node, ast.Constant)}

        assert (
            missing
            + [n for n, v in entries.items() if isinstance(v, Kernel) and n not in named and v.name not in quoted]
            == []
        )


@pytest.mark.parametrize("room", ROOMS)
class TestRoom:
    """Source and entries of a room belong together."""

    def test_has_kernels_of_its_own_only(self, room: str) -> None:
        """Every entry of the room's file names the room. Red: an entry moved without its source."""
        assert {k.room for k in by_room(room)} == {room}

    def test_source_defines_every_symbol(self, room: str) -> None:
        """The room's source defines each kernel that its entries name, and no other. Red: a kernel without an entry."""
        source = (ROOT / "kernels" / f"{room}.cu").read_text()
        defined = set(re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(", source))

        assert defined == {k.symbol for k in by_room(room)}

    def test_prints_its_places(self, room: str) -> None:
        """`python -m kernels ROOM` prints the room's five files and all its kernels. Red: a page cut short."""
        text = page(room)

        assert all(str(path) in text for path in places(room).values())
        assert all(k.name in text for k in by_room(room))


class TestCatalogue:
    """The catalogue is whole."""

    def test_every_source_is_a_room(self) -> None:
        """A CUDA source without entries, or a room without a source, is an error. Red: a room left out of ROOMS."""
        assert sorted(ROOMS) == SOURCES

    def test_names_are_unique(self) -> None:
        """No two kernels share a name. Red: an entry copied and not renamed."""
        assert len({k.name for k in KERNELS}) == len(KERNELS)

    def test_a_kernel_is_found_by_name(self) -> None:
        """Looking a name up gives the entry of that name. Red: the first entry for any name."""
        assert [kernel(k.name) for k in KERNELS] == list(KERNELS)

    @pytest.mark.parametrize("look_up", [kernel, by_room])
    def test_an_unknown_name_is_refused(self, look_up: object) -> None:
        """An unknown kernel or room is one sentence with the names that exist. Red: an empty answer."""
        with pytest.raises(LanelockError, match=r"unknown (kernel|room) 'nope'; the (kernels|rooms) are add, "):
            look_up("nope")  # type: ignore[operator]  # both take a name
