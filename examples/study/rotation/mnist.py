"""Reads MNIST's file format, idx: a header of big-endian sizes, then bytes."""

import gzip
import pathlib
import struct
import zlib
from typing import NamedTuple

import numpy as np

from examples.pretrain.errors import UserError

SHIPPED = pathlib.Path(__file__).parents[2] / "data" / "mnist-images-idx3-ubyte.gz"


class Digits(NamedTuple):
    """Pixels `(images, 784)` from 0 to 1, and the digit on each image."""

    pixels: np.ndarray
    labels: np.ndarray


def load(path: pathlib.Path = SHIPPED, count: int | None = None) -> Digits:
    """The first images of a file, with the labels of the file beside it.

    Args:
        path: A file such as `train-images-idx3-ubyte.gz`; the labels' name has
            `labels-idx1` for `images-idx3`.
        count: Number of images; None for all.

    Raises:
        UserError: If a file is missing, is not an idx file, or has fewer images.
    """
    if "images-idx3" not in path.name:
        raise UserError(
            f"{path} should have 'images-idx3' in its name, so that its labels can be "
            f"found; give --data a file such as train-images-idx3-ubyte.gz."
        )
    images = _read(path, axes=3)
    labels = _read(path.with_name(path.name.replace("images-idx3", "labels-idx1")), 1)
    if len(images) != len(labels):
        raise UserError(f"{path} has {len(images)} images, but {len(labels)} labels.")
    count = len(images) if count is None else count
    if count > len(images):
        raise UserError(
            f"{path} has {len(images)} images; lower --images, or give --data a file "
            f"with {count}."
        )
    pixels = images[:count].reshape(count, -1).astype(np.float32) / 255
    return Digits(pixels, labels[:count].astype(np.int32))


def _read(path, axes):
    """The array of bytes of an idx file, compressed or not."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        magic, *shape = struct.unpack_from(f">{1 + axes}i", content)
        if magic != 0x0800 + axes:
            raise ValueError(f"its first bytes are not an idx header of {axes} axes")
        return np.frombuffer(content, np.uint8, offset=4 * (1 + axes)).reshape(shape)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}; give --data an idx file.") from None
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        message = f"Cannot read {path} ({error}); give --data an idx file."
        raise UserError(message) from None
