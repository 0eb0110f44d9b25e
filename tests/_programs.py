"""Counts the programs that XLA compiles, in each test as a plugin.

Compilation is most of the time of the tests, and most programs are small ones of the
tests' own: `jnp.ones`, `x[i]`, `jax.random.normal`. Arrays made and compared by NumPy
compile nothing, and `jax.jit(tx.update)` is one program where `tx.update` is many.

`pytest --programs PATHS` forgets what JAX has compiled before each test, and lists the
fast tests that compile more than `LIMIT` programs, with their names. Only the test
itself counts, not its fixtures. `@pytest.mark.programs(7, "why")` gives a test, or all
tests of a file, another limit.
"""

import collections
import contextlib

import jax
import pytest

LIMIT = 3
MARK = "programs(number, reason): a fast test that may compile more programs"
_COMPILED = []


def _note(event, duration_secs, **more):
    del duration_secs
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(more.get("fun_name", "?"))


jax.monitoring.register_event_duration_secs_listener(_note)


@contextlib.contextmanager
def compilations():
    """A list that holds, on leaving, the name of each program compiled inside."""
    found, start = [], len(_COMPILED)
    yield found
    found.extend(_COMPILED[start:])


class Programs:
    """The plugin.

    Attributes:
        alone: Whether each test compiles all of its programs, as if it ran alone.
        found: Per fast test its id, the programs that it compiled, and its limit.
    """

    def __init__(self, *, alone):
        self.alone = alone
        self.found = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        if self.alone:
            jax.clear_caches()
        with compilations() as names:
            result = yield
        if is_fast(item):
            # Reports carry these from the workers to the process that prints.
            item.user_properties.append(("programs", (names, limit_of(item))))
        return result

    def pytest_runtest_logreport(self, report):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "programs":
                self.found.append((report.nodeid, *value))

    def pytest_terminal_summary(self, terminalreporter):
        if self.alone:
            terminalreporter.section("programs")
            terminalreporter.write_line("\n".join(listed(self.found)))


def is_fast(item):
    """Whether `make test-fast` runs it; doctests are written for users."""
    slow = item.get_closest_marker("broad") or item.get_closest_marker("slow")
    return isinstance(item, pytest.Function) and not slow


def limit_of(item):
    """The programs that a test may compile."""
    mark = item.get_closest_marker("programs")
    if mark is None:
        return LIMIT
    number, reason = mark.args
    assert isinstance(number, int), number
    assert isinstance(reason, str), reason
    return number


def listed(found):
    """Lines on the tests over their limits, by file and function, and a sum."""
    by_file = collections.defaultdict(list)
    for test, names, limit in found:
        by_file[test.partition("::")[0]].append((test, names, limit))
    for file, tests in by_file.items():
        over = collections.defaultdict(list)
        for test, names, limit in tests:
            if len(names) > limit:
                over[test.partition("::")[2].partition("[")[0]].append(names)
        total = sum(len(names) for _, names, _ in tests)
        count = sum(map(len, over.values()))
        yield f"{file}: {total} programs, {count} of {len(tests)} tests over"
        for function, cases in sorted(over.items(), key=lambda x: -_most(x[1])):
            often = collections.Counter(max(cases, key=len)).most_common()
            what = ", ".join(f"{n} {name}" for name, n in often)
            yield f"  {_most(cases):3d} {function} ({len(cases)}): {what}"
    total = sum(len(names) for _, names, _ in found)
    over = sum(len(names) > limit for _, names, limit in found)
    yield f"{total} programs in {len(found)} fast tests, {over} over their limits"


def _most(cases):
    return max(map(len, cases))
