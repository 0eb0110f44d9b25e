"""Shapes and specs of large models."""

import itertools

READS, WRITES = (("fsdp",), ("tp",)), (("tp",), ("fsdp",))


def llama(layers, embed, mlp, kv):
    """Shapes of 8.6B and 70B models, with the specs of FSDP and tensor parallelism."""
    kernels = {
        "q": ((embed, embed), READS),
        "k": ((embed, kv), READS),
        "v": ((embed, kv), READS),
        "o": ((embed, embed), WRITES),
        "gate": ((embed, mlp), READS),
        "up": ((embed, mlp), READS),
        "down": ((mlp, embed), WRITES),
    }
    pairs = itertools.product(range(layers), kernels.items())
    return {f"layers/{i}/{name}/kernel": kernel for i, (name, kernel) in pairs}
