"""The directory of a run: a lock that one process can hold, settings, and metrics.

`where` are the versions and the machine; they are recorded beside results, and never
compared.
"""

import contextlib
import datetime as dt
import errno
import fcntl
import importlib.metadata
import io
import json
import os
import pathlib
import platform
from collections.abc import Iterator

from examples.pretrain.errors import UserError

RECORD, TABLE, LOCK, PART = "run.json", "matrices.json", "lock", ".part"
PACKAGES = "jax", "jaxlib", "optax", "flax"


@contextlib.contextmanager
def claimed(
    directory: pathlib.Path,
    settings: dict,
    *,
    resume: bool,
    hint: str = "continue the run in it with --resume, or choose another --out",
) -> Iterator[None]:
    """Reserves a directory for this run, while the context is open.

    Args:
        directory: Where the run will write.
        settings: Everything that decides its outcome.
        resume: Whether to continue the run in the directory.
        hint: End of the error message if the directory is not empty.

    Raises:
        UserError: If the directory holds another run, or none to resume, cannot be
            made, or another process trains in it.
    """
    settings = json.loads(json.dumps(settings))
    try:
        if directory.exists() and not directory.is_dir():
            raise UserError(f"{directory} is a file; choose another --out.")
        old = recorded(directory)
        if resume and old is None:
            raise UserError(f"There is no run in {directory}; start without --resume.")
        if not resume and not _is_free(directory):
            raise UserError(f"{directory} is not empty; {hint}.")
        directory.mkdir(parents=True, exist_ok=True)
        lock = locked(directory)
    except OSError as error:
        raise UserError(
            f"Cannot write to {directory} ({error}); make it writable, or choose "
            f"another --out."
        ) from None
    with lock:
        if not resume and not _is_free(directory):  # Since it was locked.
            raise UserError(f"{directory} is not empty; {hint}.")
        if resume:
            check_same(recorded(directory), settings, directory)
        else:
            write_whole(directory / RECORD, json.dumps(settings, indent=2) + "\n")
        yield


def locked(directory: pathlib.Path, flag: str = "--out") -> io.IOBase:
    """Opens and locks a file in a directory until it is closed or the process ends.

    Args:
        directory: The directory.
        flag: The option of the command that names it, for error messages.

    Raises:
        UserError: If another process has locked it.
    """
    file = (directory / LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(
            f"Another process is at work in {directory}; wait for it or end it, or "
            f"choose another {flag}."
        ) from None
    return file


def recorded(
    directory: pathlib.Path, name: str = RECORD, remedy: str = "choose another --out"
) -> dict | None:
    """The settings of the run in a directory, or another dict; None if it has none."""
    path = directory / name
    try:
        settings = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"Cannot read {path} ({error}); choose another --out."
        ) from None
    except ValueError as error:  # Not JSON, or not UTF-8.
        settings = error
    if not isinstance(settings, dict):
        raise UserError(
            f"{path} is damaged ({settings or 'no settings'}); restore it from a copy, "
            f"or {remedy}."
        )
    return settings


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file that is never seen half written.

    Raises:
        UserError: If it cannot be written.
    """
    part = path.with_name(path.name + PART)
    try:
        part.write_text(text)
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"Cannot write {path} ({error}); free the disk.") from None


def _is_free(directory):
    """Whether a directory is missing, or holds only what `claimed` may leave behind.

    It leaves files behind if its process is killed.
    """
    if not directory.exists():
        return True
    own = {LOCK, RECORD + PART}
    return directory.is_dir() and own.issuperset(p.name for p in directory.iterdir())


def check_same(
    old: dict | None, new: dict, directory: pathlib.Path, flag: str = "--out"
) -> None:
    """Raises `UserError` if a run in a directory has other settings than this one.

    Args:
        old: The settings of the run in the directory; None if there are none.
        new: Those of this run.
        directory: The directory.
        flag: The option of the command that names it, for error messages.
    """
    model = lambda tree: tree["model"] if isinstance(tree.get("model"), dict) else {}
    flat = lambda tree: dict(tree | model(tree), model=None)
    old, new = flat(old or {}), flat(new)
    # Checksums are last, because they depend on other settings.
    for key in sorted(new, key=("checksum", "version").__contains__):
        is_older = key == "version" and key not in old  # Than this setting.
        if old.get(key) == new[key] or is_older:
            continue
        if key == "checksum" and "data" in new:
            raise UserError(
                f"The text of --data {new['data']} has changed since the run in "
                f"{directory} began; restore it, or choose another {flag}."
            )
        if key == "version" and "optimizer" in new:
            raise UserError(
                f"The file of --optimizer {new['optimizer']} has changed since the run "
                f"in {directory} began; restore it, or choose another {flag}."
            )
        raise UserError(
            f"{directory} belongs to another run, with {key} {old.get(key)!r}, not "
            f"{new[key]!r}; repeat its settings or choose another {flag}."
        )


class Metrics:
    """Appends to a JSONL file.

    Args:
        path: The file.
        after: Step of the checkpoint that the run continues from. Lines of later
            steps, and an incomplete last line, are dropped, so that no step appears
            twice.
    """

    def __init__(self, path: pathlib.Path, after: int = 0):
        kept = [json.dumps(row) for row in read(path) if row["step"] <= after]
        write_whole(path, "".join(line + "\n" for line in kept))
        self._path, self._file = path, path.open("ab", buffering=0)

    def write(self, **values) -> None:
        """Adds one line; it survives if the process is killed.

        Raises:
            UserError: If the disk fails, or the file has vanished.
        """
        try:
            if not os.fstat(self._file.fileno()).st_nlink:
                raise FileNotFoundError("the file has vanished")
            line = (json.dumps(values) + "\n").encode()
            if self._file.write(line) != len(line):  # The disk took only a part.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UserError(
                f"Cannot write {self._path} ({error}); repair or free the disk, then "
                f"resume the run."
            ) from None

    def close(self) -> None:
        self._file.close()


def read(path: pathlib.Path) -> list[dict]:
    """The complete lines of a metrics file; none if the file does not exist.

    Raises:
        UserError: If a line is damaged.
    """
    if not path.exists():
        return []
    rows = []
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
            rows[-1]["step"] + 0
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"Line {number} of {path} is damaged; repair or delete it."
            ) from None
    return rows


def where() -> dict[str, str]:
    """Versions, machine and date."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return {
        "versions": ", ".join(versions),
        "python": platform.python_version(),
        "machine": _processor(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _processor() -> str:
    """Name, family, model and cores: one name may stand for several processors."""
    info = pathlib.Path("/proc/cpuinfo")
    found: dict[str, list[str]] = {}
    for line in info.read_text().splitlines() if info.exists() else ():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), []).append(value.strip())
    names = found.get("model name")
    if not names:
        return platform.machine()
    kind = ", ".join(
        f"{x} {found[x][0]}" for x in ("cpu family", "model") if x in found
    )
    return f"{names[0]} ({kind}), {len(names)} cores"
