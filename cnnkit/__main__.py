"""The command line: `cnnkit`, or `python -m cnnkit`."""

import sys

from cnnkit.command import main

if __name__ == "__main__":
    sys.exit(main())
