"""``python -m examples.bench``."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Its threads wait in a busy loop.

if __name__ == "__main__":  # Worker processes import this module, too.
    from examples.bench.cli import main

    raise SystemExit(main())
