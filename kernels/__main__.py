"""`python -m kernels ROOM` prints the places of a room and its kernels; without a room, the rooms."""

import sys

from kernels.catalogue import ROOMS
from kernels.places import page
from oracle.errors import LanelockError


def main(arguments: list[str]) -> int:
    """Print a page for each room named. A wrong name is one sentence on stderr and exit code 2."""
    try:
        print("\n\n".join(page(room) for room in arguments) if arguments else "\n".join(ROOMS))
    except LanelockError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
