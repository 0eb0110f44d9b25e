"""Compares the catalogue with its restatements: ``python -m examples.catalogue``.

Prints the largest error of an update of each method, relative to its largest entry, in
three steps: in float64, and in float32.
"""

import argparse

import jax
import numpy as np

from examples.catalogue import GROUPS, METHODS


def main(names=()):
    """Prints the table of errors, and returns those in float64."""
    with jax.enable_x64(True):
        return _main(names)


def _main(names):
    found = {}
    print(f"{'method':<20}{'float64':>10}{'float32':>10}")
    for needs, methods in GROUPS.items():
        chosen = {n: x for n, x in methods.items() if not names or n in names}
        if chosen:
            print(f"-- {needs}")
        for name, method in chosen.items():
            found[name], narrow = map(method.error, (np.float64, np.float32))
            print(f"{name:<20}{found[name]:>10.1e}{narrow:>10.1e}", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "examples.catalogue", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", choices=[[], *METHODS], default=[])
    main(parser.parse_args().names)
