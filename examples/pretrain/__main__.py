"""`python -m examples.pretrain`."""

import os

# LAPACK's threads spin: beside other load a decomposition takes 100 times longer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from examples.pretrain.cli import main
from examples.pretrain.errors import leave

leave(main())
