"""Counts the programs that XLA compiles, in each test as a plugin.

Compilation is most of the time of the tests, and most programs are small ones of the
tests' own: `jnp.ones`, `x[i]`, `jax.random.normal`. Arrays made and compared by NumPy
compile nothing, and `jax.jit(tx.update)` is one program where `tx.update` is many.

A fast test that compiles more than `LIMIT` programs fails. Only the test itself counts,
not its fixtures. `@pytest.mark.programs(7, "why")` gives a test another limit, and
`programs.json` gives one to files that had more when this began: the most that one of
their tests compiled, or null where nobody has counted. Other versions of JAX compile
other programs, so it holds with the version that it names.

`pytest --programs PATHS` forgets what JAX has compiled before each test, and lists the
tests over their limits with the names of the programs; `--write-programs` also writes
what whole files need into `programs.json`.
"""

import collections
import contextlib
import functools
import json
from pathlib import Path

import jax
import pytest

LIMIT = 3
TABLE = Path(__file__).with_name("programs.json")
VERSION = ".".join(jax.__version__.split(".")[:2])
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
        write: Whether the table gets what the files need.
        found: Per fast test its id, the programs that it compiled, and its limit.
    """

    def __init__(self, *, alone, write=False):
        self.alone, self.write = alone or write, write
        self.found = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        if self.alone:
            jax.clear_caches()
        with compilations() as names:
            result = yield
        if is_fast(item):
            limit = limit_of(item)
            # Reports carry these from the workers to the process that prints.
            item.user_properties.append(("programs", (names, limit)))
            if not self.alone and limit is not None and len(names) > limit:
                pytest.fail(advice(names, limit), pytrace=False)
        return result

    def pytest_runtest_logreport(self, report):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "programs":
                self.found.append((report.nodeid, *value))

    def pytest_terminal_summary(self, terminalreporter):
        if self.alone:
            terminalreporter.section("programs")
            terminalreporter.write_line("\n".join(listed(self.found)))
        if self.write:
            write(self.found)


def is_fast(item):
    """Whether `make test-fast` runs it; doctests are written for users."""
    slow = item.get_closest_marker("broad") or item.get_closest_marker("slow")
    return isinstance(item, pytest.Function) and not slow


def limit_of(item):
    """The programs that a test may compile; None where there is no limit."""
    if mark := item.get_closest_marker("programs"):
        number, reason = mark.args
        assert isinstance(number, int), number
        assert isinstance(reason, str), reason
        return number
    limits = table()
    return None if limits is None else limits.get(file_of(item.nodeid), LIMIT)


@functools.cache
def table():
    """The limits of files; None if they are those of another version of JAX."""
    found = json.loads(TABLE.read_text())
    return found["files"] if found["jax"] == VERSION else None


def file_of(test):
    """The file of a test, as `programs.json` has it."""
    return test.partition("::")[0]


def advice(names, limit):
    """What to do about a test that compiles many programs."""
    most = ", ".join(f"{n} {x}" for x, n in collections.Counter(names).most_common(5))
    return (
        f"This fast test compiles {len(names)} programs (of them {most}), and {limit} "
        "are allowed. Make inputs and compare results by NumPy, and jit what it calls; "
        "or mark it `broad`, or @pytest.mark.programs(number, reason)."
    )


def write(found):
    """Writes what the files that ran need into the table."""
    most = {}
    for test, names, _ in found:
        most[file_of(test)] = max(most.get(file_of(test), 0), len(names))
    files = {**json.loads(TABLE.read_text())["files"], **most}
    files = {x: n for x, n in sorted(files.items()) if n is None or n > LIMIT}
    text = json.dumps({"jax": VERSION, "files": files}, indent=0)
    TABLE.write_text(f"{text}\n")


def listed(found):
    """Lines on the tests over their limits, by file and function, and a sum."""
    by_file = collections.defaultdict(list)
    for test, names, limit in found:
        by_file[file_of(test)].append((test, names, limit or LIMIT))
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
    over = sum(len(names) > (limit or LIMIT) for _, names, limit in found)
    yield f"{total} programs in {len(found)} fast tests, {over} over their limits"


def _most(cases):
    return max(map(len, cases))
