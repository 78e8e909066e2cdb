"""Machine checks that a survivor changes nothing, stored beside the mutants; an opinion is not one.

locks/mutants/equivalent.toml holds a table array `[[equivalent]]` with id (of the mutant), check and sentence. A check
is a command that prints what the mutated code does: it runs in the checkout as it is and with the mutant, and the
mutant is equivalent only if both end well and print the same. The check `object` is the command that prints the
machine code which the host's compiler and NVRTC make of every instantiation.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from oracle.errors import LanelockError
from reports.strength.mutant import EQUIVALENT_FILE, Mutant
from reports.strength.overlay import applied, copy_checkout

OBJECT = "python -m reports.strength.object_code {file}"
SECONDS = 900


def stored_checks(folder: Path) -> dict[str, str]:
    """Mutant id -> command of its check. Raises LanelockError for a faulty file."""
    path = folder / EQUIVALENT_FILE
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
        return {t["id"]: OBJECT if t["check"] == "object" else t["check"] for t in tables if t["sentence"]}
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise LanelockError(f"{path.name}: every table needs id, check and sentence ({error})") from error


def proven_equivalent(mutant: Mutant, root: Path, checks: Mapping[str, str]) -> bool:
    """True if a check of this mutant is stored and prints the same with and without the mutant."""
    if mutant.id not in checks:
        return False
    command = checks[mutant.id].format(file=mutant.file)
    with tempfile.TemporaryDirectory(prefix="lanelock-equivalence-") as folder:
        overlay = Path(folder)
        copy_checkout(root, overlay)
        before = _printed(command, overlay)
        with applied(mutant, overlay):
            after = _printed(command, overlay)
    return before is not None and before == after


def _printed(command: str, overlay: Path) -> str | None:
    """What the command prints in the overlay; None if it fails, prints nothing or takes too long."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    environment = {**os.environ, "PYTHONPATH": str(overlay)}
    try:
        done = subprocess.run(
            words, cwd=overlay, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None
