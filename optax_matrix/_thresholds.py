"""Sizes above which another algorithm is used, all in one place.

Tests lower all of them at once, so that small matrices take the branches of large ones
(``tests/_lowered.py``). They change speed, memory and rounding only, except for
`noise_side`. A side shorter than two blocks or tiles is not split.

Not here: what arguments set (``max_dim``, ``block_size``, ``min_size``, ``max_batch``),
numbers of leaves (``stacks.parts``), what reads a tree of parameters (`matrices`), and
tiles of kernels for one kind of hardware (``linalg.pallas``).
"""


class Thresholds:
    """The sizes. Read them where they are used, not as defaults of arguments."""

    # On a CPU: the shorter side from which on the matrices of a stack are taken one or
    # two at a time, so that they stay in cache; see ``_platforms``.
    in_turn_side = 64
    # The same for POET's primitives, whose products are those of small blocks. Times of
    # a step with one matrix at a time, divided by those of whole stacks (float32, two
    # CPU cores, medians side by side): 1.4 and 0.7 (48 x 128 x 128, blocks of 16 and
    # 64), 1.0 and 0.7 (24 x 256 x 256, blocks of 16 and 256), 0.8 (8 x 512 x 512).
    primitives_side = 256
    # The side from which on a symmetric product is made of three products of blocks.
    blocked_side = 512
    # On a TPU: the side from which on a product is made of tiles in a loop. The
    # compiler unrolls a float32 product whose operands fit into fast memory, which
    # takes 10 processor seconds for sides of 1024 inside a loop (v5e), and one in tiles
    # of 256 x 256, or wider ones of at most so many multiplications.
    tiled_side = 512
    tile_side = 256
    tile_multiplications = 2**26
    # The most columns of a QR by reflections: compilers take 72 processor seconds for a
    # side of 2048, and 16 for Cholesky QR of a side of 4096.
    reflected_columns = 1024
    # The largest side of an SVD by the compiler, which takes 46 seconds for 512.
    svd_side = 256
    # Blocks of Jacobi rotations, from two of them on: compilers take 40 and 120 seconds
    # for an eigendecomposition of sides of 512 and 1024.
    jacobi_block = 128
    # Panels of a quotient by a Cholesky factor, from two of them on; and on every
    # platform the side up to which a triangular factor is inverted by a solve. For a
    # side of 1024 compilers take 1 to 2 seconds for the loop over panels, and 9 for a
    # decomposition, an inverse and a product; for a side of 2048 they take 2 for the
    # inverse by halves, and 19 for a triangular solve.
    triangular_block = 128
    # The most columns made orthonormal by three bfloat16 passes: above it their error
    # comes close to that at which `cholesky_qr` takes columns for not orthonormal.
    narrow_columns = 2048
    # On CUDA: the least columns of a panel of Cholesky QR, of up to four.
    panel_columns = 384
    # The longest side at which single entries of a rotated matrix count as noise; see
    # ``transforms.rotation``.
    noise_side = 16
    # The most numbers of a stack on a device, 256 MiB in float32: stacking copies them.
    stack_elements = 2**26
    # The most numbers of stacks that one device computes as one. XLA copies what may
    # stay as it is there, such as a basis: larger copies cost more than is saved.
    joined_elements = 2**25
    # The shorter side of a matrix that keeps a device busy by itself.
    busy_side = 512
    # Bytes that a device holds of an array while it is brought to the host.
    gathered_bytes = 2**28
