"""The command line: the one place where all meet. It may import everything, and nothing imports it."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence

from harness.cli.numbers import check_numbers
from oracle.errors import LanelockError

#: Command modules in the order of the help page; each has register(subparsers).
COMMANDS = (
    "verify",
    "doctor",
    "kernels",
    "run",
    "exhaustive",
    "strength",
    "import_",
    "export",
    "inspect",
    "logits",
    "mtp_logits",
    "decode",
    "golden",
    "bench",
    "report",
    "plan",
    "trace",
    "bisect",
    "ablate",
    "emit",
    "sanitize",
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="lanelock",
        description="Executable specification and build of a quantised, batched decode engine: the bits are specified.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"harness.cli.{name}").register(commands)
    return top


def joined(argv: Sequence[str]) -> list[str]:
    """`--tokens -1,2` as `--tokens=-1,2`: a list of numbers that starts with a dash is a value, not an option."""
    words: list[str] = []
    for word in argv:
        if words and re.fullmatch(r"--[a-z-]+", words[-1]) and re.match(r"-\d", word):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. A user error is one sentence on stderr and exit code 2."""
    args = parser().parse_args(joined(sys.argv[1:] if argv is None else argv))
    try:
        check_numbers(args)
        return int(args.func(args) or 0)
    except LanelockError as error:
        print(f"lanelock: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lanelock: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
