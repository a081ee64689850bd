"""`python -m cnnkit.lab`: the commands lab and launch."""

import sys

from cnnkit.lab.cli import main

sys.exit(main())
