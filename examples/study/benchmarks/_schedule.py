"""How long the kernels of a TPU program take by the schedule that its compiler made.

The TPU compiler writes the schedule of each kernel to a folder if it is asked to. A
line there is a bundle of instructions that begin in the same cycle, and the tests at
the ends of loops show how often they run. A schedule leaves out waits for memory and
for busy units, and counts what a branch may skip.
"""

import pathlib
import re

_BUNDLE = re.compile(r"^\s*(?:0x)?[0-9a-f]+\s*([A-Z]{2})?\s*:[ >]*\{")
_ADDED = re.compile(r"(%s\w+) = sadd\.s32 (\d+), %s")
_TEST = re.compile(
    r"(%p\w+) = scmp\.ge\.s32\.totalorder (?:\(%p\w+\), )?(%s\w+), (\d+) "
    r"/\* loop exit test"
)
_BACK = re.compile(r"sbr\.rel \(!(%p\w+)\) target")
_STAGE = re.compile(r"iteration index, stage = (\d+)")
_FILE = re.compile(r"^\d+-(.+)-\d+-final_bundles\.txt$")


def arguments(folder: str) -> str:
    """What `LIBTPU_INIT_ARGS` must be before JAX loads the compiler."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        "--xla_jf_dump_llo_pass_label_regex=final_bundles"
    )


def bundles(text: str) -> int:
    """Bundles that a kernel runs, those in loops as often as they run.

    Data is fetched a round or two before it is used, so the outermost loop has as many
    rounds more, in which nothing is computed; they are left out.
    """
    number, begun, rounds, added = 0, [], {}, {}
    loops: list[tuple[int, int, int]] = []
    for line in text.splitlines():
        found = _BUNDLE.match(line)
        if found is None:
            continue
        if found[1] == "LB":
            begun.append(number)
        added.update((name, int(n)) for name, n in _ADDED.findall(line))
        for test, index, end in _TEST.findall(line):
            rounds[test] = -(-int(end) // added.get(index, 1))
        number += 1
        for test in _BACK.findall(line):
            if test in rounds and begun:
                loops.append((begun.pop(), number, rounds[test]))
    ahead = max(map(int, _STAGE.findall(text)), default=0)
    times = [1] * number
    for first, end, count in loops:
        outermost = not any(a < first and end <= b for a, b, _ in loops)
        for i in range(first, end):
            times[i] *= max(count - ahead, 1) if outermost else count
    return sum(times)


def cycles(folder: str) -> dict[str, int]:
    """Bundles by the names of kernels, from a folder that is emptied."""
    found = {}
    for path in pathlib.Path(folder).iterdir():
        name = _FILE.match(path.name)
        if name and "schedule-analysis" not in path.name:
            found[name[1]] = bundles(path.read_text())
        path.unlink()
    return found
