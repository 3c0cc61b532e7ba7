"""The command `millguard`, as `python -m millguard`."""

import sys

from millguard.command_line import main

if __name__ == "__main__":
    sys.exit(main())
