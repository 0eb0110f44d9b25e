"""Thresholds lowered by one setting: small matrices take the branches of large ones.

``with lowered():`` does it for all that is traced inside. So does, for a whole script,

    python tests/_lowered.py SCRIPT ARGUMENTS
"""

import contextlib
import runpy
import sys
from unittest import mock

import jax

from optax_matrix._thresholds import Thresholds

# JAX keeps what it has traced by the value of this, too.
_SETTING = jax.make_user_context(default_value=None)
_POWERS = {"elements": 2, "bytes": 2, "multiplications": 3}  # Others are of sides.
NAMES = tuple(name for name in vars(Thresholds) if not name.startswith("_"))


@contextlib.contextmanager
def lowered(by=256, *, platform=None, seen=None):
    """Divides all thresholds, to no less than 2; those of areas by the square.

    With a platform, its branches run here. ``seen`` collects pairs of a threshold's
    name and whether a size was above it, from all comparisons in the package.
    """
    values = {}
    for name in NAMES:
        power = _POWERS.get(name.rpartition("_")[2], 1)
        value = max(2, getattr(Thresholds, name) // by**power)
        values[name] = value if seen is None else _Watched(value, name, seen)
    choose = jax.lax.platform_dependent if platform is None else _branch(platform)
    with (
        mock.patch.multiple(Thresholds, **values),
        mock.patch.object(jax.lax, "platform_dependent", choose),
        _SETTING((by, platform, None if seen is None else object())),
    ):
        yield


def _branch(platform):
    def choose(*args, default=None, **branches):
        # LAPACK's batches are for the CPU that this runs on.
        return branches.get(platform, branches.get("cpu", default))(*args)

    return choose


class _Watched(int):
    """A number that notes how the package compares other numbers with it."""

    def __new__(cls, value, name, seen):
        self = super().__new__(cls, value)
        self.name, self.seen = name, seen
        return self

    def _note(self, is_above):
        # JAX compares sizes, too: only what the package does with them counts.
        caller = sys._getframe(2).f_globals["__name__"]
        if caller.startswith("optax_matrix."):
            self.seen.add((self.name, is_above))

    # Python asks the right operand first, as its type is a subclass of the left one's.
    def __lt__(self, size):
        self._note(size > int(self))
        return int(self) < size

    def __le__(self, size):
        self._note(size >= int(self))
        return int(self) <= size

    def __gt__(self, size):
        self._note(size >= int(self))
        return int(self) > size

    def __ge__(self, size):
        self._note(size > int(self))
        return int(self) >= size

    def __rfloordiv__(self, size):
        self._note(abs(size // int(self)) > 1)  # More than one block.
        return size // int(self)

    def _derived(self, value):
        return _Watched(value, self.name, self.seen)

    def __mul__(self, factor):
        return self._derived(int(self) * factor)

    __rmul__ = __mul__

    def __floordiv__(self, size):
        return self._derived(int(self) // size)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with lowered():
        runpy.run_path(sys.argv[0], run_name="__main__")
