"""The dynamic map of eight-bit optimizers and its rounding, in NumPy float64."""

import numpy as np

BLOCK = 256


def dynamic_map(signed):
    """The 256 values as the bitsandbytes library lists them, sorted."""
    values = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        middles = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
        values += [*middles, *-middles] if signed else [*middles]
    return np.sort(values)


def blocks(x, batch_axes=0, size=BLOCK):
    """Blocks of a matrix one after the other, in float64; zeros fill up."""
    flat = np.asarray(x, np.float64).reshape(*x.shape[:batch_axes], -1)
    widths = [(0, 0)] * batch_axes + [(0, -flat.shape[-1] % size)]
    return np.pad(flat, widths).reshape(*x.shape[:batch_axes], -1, size)


def rounded(x, signed):
    """The nearest value of the map to every number."""
    scale = np.abs(blocks(x)).max(-1, keepdims=True)
    table = dynamic_map(signed)
    unit = blocks(x) / np.where(scale == 0, 1, scale)
    at = np.abs(unit[..., None] - table).argmin(-1)
    if not signed:
        at = np.where((unit > 0) & (at == 0), 1, at)
    return (table[at] * scale).reshape(-1)[: x.size].reshape(x.shape)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6


def rounded_to_four(x, signed):
    """The nearest value of four bits, over the smaller scale of row and column."""
    size = np.abs(np.asarray(x, np.float64))
    scale = np.minimum(size.max(-1, keepdims=True), size.max(-2, keepdims=True))
    table = E2M1 if signed else np.arange(1, 17) / 16
    unit = size / np.where(scale == 0, 1, scale)
    return np.sign(x) * scale * table[np.abs(unit[..., None] - table).argmin(-1)]
