"""`python -m taskc`, for the command line."""

import sys

from taskc.cli import main

sys.exit(main())
