"""The text: Python sources of pinned packages, held out by package.

Wheels that are pure Python are the same on all machines, and so is the text; digests
of it are kept beside the list of the packages.
"""

import hashlib
import lzma
import pathlib
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator

import numpy as np

from examples.pretrain.errors import UserError

LIST = pathlib.Path(__file__).with_name("packages.toml")
PARTS = "train", "validation", "test"
LONGEST = 300_000  # Bytes of a file; longer ones are tables.
SEPARATOR = b"\0"
_PURE = ("--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none")
_FOR = ("--no-deps", "--python-version=3.12", *_PURE)


def packages() -> dict[str, dict]:
    """Packages and digest of each part."""
    return tomllib.loads(LIST.read_text())


def make(folder: pathlib.Path) -> dict[str, str]:
    """Downloads the packages and writes the text of each part; returns the digests.

    Raises:
        UserError: If a package cannot be downloaded.
    """
    seen: set[bytes] = set()
    found = {}
    for part, listed in packages().items():
        names = sorted(listed["packages"])
        wheels = [_wheel(name, folder / "wheels") for name in names]
        text = b"".join(source + SEPARATOR for w in wheels for source in _new(w, seen))
        with lzma.open(folder / f"{part}.xz", "wb", preset=6) as file:
            file.write(text)
        found[part] = hashlib.sha256(text).hexdigest()
    return found


def _wheel(name, folder):
    """The wheel of a package, downloaded if it is not there."""
    project, version = name.split("==")
    pattern = f"{project.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        call = ("-m", "pip", "download", "--quiet", *_FOR, "--dest", folder, name)
        done = subprocess.run([sys.executable, *call], capture_output=True, text=True)
        if done.returncode:
            reason = " ".join(done.stderr.split())[-300:]
            raise UserError(f"Cannot download {name} ({reason}).")
    if found := list(folder.glob(pattern)):
        return found[0]
    raise UserError(f"{folder} has no {pattern}, which pip should have downloaded.")


def _new(wheel: pathlib.Path, seen: set[bytes]) -> Iterator[bytes]:
    """The Python files of a wheel that none before it had."""
    with zipfile.ZipFile(wheel) as archive:
        files = [x for x in archive.infolist() if x.filename.endswith(".py")]
        for file in sorted(files, key=lambda x: x.filename):
            source = archive.read(file)
            digest = hashlib.sha256(source).digest()
            if source and len(source) <= LONGEST and digest not in seen:
                seen.add(digest)
                yield source


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """The text of each part, as bytes.

    Raises:
        UserError: If the folder does not have it, or has another text.
    """
    found = {}
    for part, listed in packages().items():
        path = folder / f"{part}.xz"
        try:
            text = lzma.decompress(path.read_bytes())
        except (OSError, lzma.LZMAError) as error:
            raise UserError(
                f"Cannot read {path} ({error}); make it with `transfer text`."
            ) from None
        if (digest := hashlib.sha256(text).hexdigest()) != listed["sha256"]:
            raise UserError(
                f"{path} is not the text of {LIST.name}: its digest is {digest}; make "
                f"it again with `transfer text`."
            )
        found[part] = np.frombuffer(text, np.uint8)
    return found
