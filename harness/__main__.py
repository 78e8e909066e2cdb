"""`python -m harness COMMAND` is the same as `lanelock COMMAND`, from a checkout that is not installed."""

import sys

from harness.cli import main

if __name__ == "__main__":  # a worker process of a command imports this module again
    sys.exit(main())
