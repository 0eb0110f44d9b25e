"""`python -m examples.pretrain train|compare ...`."""

import sys

from examples.pretrain.cli import main

sys.exit(main())
