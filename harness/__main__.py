"""`python -m harness COMMAND` is the same as `lanelock COMMAND`, from a checkout that is not installed."""

import sys

from harness.cli import main

sys.exit(main())
