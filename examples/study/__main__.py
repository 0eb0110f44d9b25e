"""``python -m examples.study``."""

import os

# LAPACK's threads spin: beside other load a decomposition takes 100 times longer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if __name__ == "__main__":  # Worker processes import this module, too.
    from examples.pretrain.errors import leave
    from examples.study.cli import main

    leave(main())
