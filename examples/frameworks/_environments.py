"""What each framework needs: packages, Python, sources."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Environment:
    """How a framework is installed.

    Attributes:
        requirements: Arguments of pip, after this library itself.
        package: The distribution whose version the table prints; None for sources.
        python: Minor version of Python 3 that the framework is installed on.
        source: Environment variable that names a checkout, for what no index has.
        required: Whether it may not be skipped where that Python is there.
    """

    requirements: tuple[str, ...]
    package: str | None
    python: int = 12
    source: str | None = None
    required: bool = False


ENVIRONMENTS = {
    "linen": Environment(("flax", "orbax-checkpoint"), "flax", required=True),
    "nnx": Environment(("flax", "orbax-checkpoint"), "flax", required=True),
    "maxtext": Environment(("maxtext[tpu]",), "maxtext", required=True),
    "levanter": Environment(("marin-levanter",), "marin-levanter", required=True),
    "keras": Environment(("keras",), "keras", required=True),
    "tunix": Environment(("google-tunix",), "google-tunix", required=True),
    # It imports Pillow and PyTorch, but does not require them.
    "easydel": Environment(("easydel", "pillow", "torch"), "easydel"),
    "kauldron": Environment(("kauldron",), "kauldron"),
    "haiku": Environment(("dm-haiku",), "dm-haiku"),
    "equinox": Environment(("equinox",), "equinox"),
    "penzai": Environment(("penzai", "orbax-checkpoint"), "penzai"),
    # It needs `jax.core.is_constant_dim`, which JAX 0.11 removed.
    "haliax": Environment(("haliax>=1.4.dev453", "jax<0.11"), "haliax"),
}
