"""One kernel, one room: the files of a room share its stem, and the catalogue knows every one of them."""

import ast
import importlib
import re

import pytest

from harness.cli import COMMANDS, main
from harness.cli.kernels import lock_files, mutant_files
from kernels.catalogue import KERNELS, ROOMS, by_room, kernel
from kernels.entry import Kernel
from kernels.places import ROOT, page, places
from oracle.errors import LanelockError
from reports.strength.mutant import load_planted

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


class TestKernels:
    """`lanelock kernels`."""

    def test_names_the_mutants_that_hold_a_room(self) -> None:
        """A room's mutants are found as strength finds them, by source. Red: a file guessed from the room's name."""
        assert mutant_files("rms_norm") == ["locks/mutants/norms.toml"]
        assert mutant_files("gemm_mma") == ["locks/mutants/projection.toml"]
        assert mutant_files("memory_read") == ["locks/mutants/memory.toml"]

    def test_names_every_lock_file_that_holds_a_room(self) -> None:
        """The room's own first, then those that strength runs for its source. Red: the file of the stem alone."""
        found = {room: lock_files(room) for room in ROOMS}
        stems = {room: [file.removeprefix("locks/test_").removesuffix(".py") for file in found[room]] for room in ROOMS}

        assert {"projection", "projection_ring", "columns"} <= set(stems["projection_stream"])
        assert stems["add"][0] == "add"
        assert {"projection", "projection_ring", "hopper"} <= set(stems["gemm_wg"])
        assert stems["attention_combine"][0] == "attention"
        assert {"attention", "batch_sizes", "state_traffic", "dependent"} <= set(stems["attention_combine"])
        assert "columns" in stems["swiglu"]
        assert all((ROOT / file).is_file() for files in found.values() for file in files)
        assert all(files[0] == str(places(room)["locks"]) for room, files in found.items())

    @pytest.mark.parametrize("room", ROOMS)
    def test_hold_planted_faults_in_every_room(self, room: str) -> None:
        """No room is without a planted fault that its locks must turn red on. Red: a new room left out."""
        assert mutant_files(room)

    def test_prints_a_line_a_kernel_off_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Piped, each kernel is one line that begins with its whole name. Red: names cut to a table's width."""
        assert main(["kernels"]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]] == [k.name for k in KERNELS]

    def test_the_readme_names_every_command_and_the_mutants_of_its_room(self) -> None:
        """The table of commands is whole, and step 6 of the room shown names a file. Red: a command left out."""
        readme = (ROOT / "README.md").read_text()
        names = [name.strip("_").replace("_", "-") for name in COMMANDS]

        assert [n for n in names if not re.search(rf"^\| .*`(lanelock )?{n}\b.*\|", readme, re.MULTILINE)] == []
        assert f"`{mutant_files('rms_norm')[0]}`" in readme


class TestRecords:
    """Figures in texts and comments come from records."""

    def test_that_are_named_are_there(self) -> None:
        """Every record that a page, a source or a lock names is in reports/records. Red: one superseded and removed."""
        kinds = {"*.md", "*.py", "*.cu", "*.cuh", "*.h", "*.cpp", "*.toml"}
        folders = [ROOT / f for f in ("kernels", "harness", "oracle", "golden", "reports", "locks")]
        texts = [*ROOT.glob("*.md"), *(path for f in folders for kind in kinds for path in f.rglob(kind))]
        # records that locks make up have one letter, or are of midnight
        name = re.compile(r"[a-z0-9-]{4,}-\d{8}T(?!000000)\d{6}Z")
        named = {n for path in texts for n in name.findall(path.read_text(encoding="utf-8"))}
        there = {path.stem for path in (ROOT / "reports" / "records").glob("*.json")}

        assert named & there
        assert sorted(named - there) == []


class TestMutants:
    """Planted faults stay where they were planted."""

    def test_every_anchor_occurs_once(self) -> None:
        """A change of a source takes the faults of its lines along. Red: a fault that quietly fades away."""
        _, dead = load_planted(ROOT / "locks" / "mutants", ROOT)

        assert [f"{d.id}: {d.reason}" for d in dead] == []


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
