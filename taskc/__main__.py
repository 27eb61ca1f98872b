"""`python -m taskc` runs the command line."""

import sys

from taskc.cli import main

sys.exit(main())
