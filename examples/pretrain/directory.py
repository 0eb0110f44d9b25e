"""The directory of a run: its settings, and a lock that one process can hold."""

import contextlib
import fcntl
import io
import json
import os
import pathlib
from collections.abc import Iterator

from examples.pretrain.errors import UserError

RECORD, LOCK, PART = "run.json", "lock", ".part"


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


def recorded(directory: pathlib.Path) -> dict | None:
    """The settings of the run in a directory; None if it holds no run."""
    path = directory / RECORD
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
            f"or choose another --out."
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
    # The checksum is last, because that of a stream depends on other settings.
    for key in sorted(new, key=lambda key: key == "checksum"):
        if old.get(key) == new[key]:
            continue
        if key == "checksum" and "data" in new:
            raise UserError(
                f"The text of --data {new['data']} has changed since the run in "
                f"{directory} began; restore it, or choose another {flag}."
            )
        raise UserError(
            f"{directory} holds another run: its {key} is {old.get(key)!r}, not "
            f"{new[key]!r}; repeat its settings or choose another {flag}."
        )
