"""``python -m examples.report``."""

import sys

from examples.report.cli import main

sys.exit(main())
