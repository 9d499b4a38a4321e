"""``python -m tkern`` is the command ``tkern``."""

import sys

from tkern.cli import main

sys.exit(main())
