"""What chips can do, for the milliseconds of a plan."""

from typing import Literal, NamedTuple

ChipName = Literal["v5e", "v5p", "v6e", "h100", "h200"]
_STEPS = 5  # The default of `newton_schulz`.


class Chip(NamedTuple):
    """Published peaks of a chip.

    Attributes:
        products: Operations a second of products in bfloat16.
        links: Bytes a second that it sends along one axis of its torus, or in its node.
        node: Number of chips that these links join; None for all.
        network: Bytes a second that it sends to other nodes.
        flag: The compiler's option without which an exchange blocks all other work.
    """

    products: float
    links: float
    node: int | None = None
    network: float = 0.0
    flag: str = ""

    def of_work(self, operations: float) -> float:
        """Seconds that a device takes at least for all steps of Newton-Schulz."""
        return _STEPS * operations / self.products

    def of_bytes(self, sent: float, devices: int) -> float:
        """Seconds that a device takes at least to send so many bytes, to all alike."""
        if self.node is None or devices <= self.node:
            return sent / self.links
        away = (devices - self.node) / (devices - 1)
        return max(sent * (1 - away) / self.links, sent * away / self.network)


_FLAG = "xla_tpu_enable_async_all_to_all"
_NODE = 8, 50e9  # Of eight GPUs, each with a network of 400 Gbit/s.
CHIPS = {
    "v5e": Chip(197e12, 2 * 45e9, flag=_FLAG),
    "v5p": Chip(459e12, 2 * 90e9, flag=_FLAG),
    "v6e": Chip(918e12, 2 * 90e9, flag=_FLAG),
    "h100": Chip(989e12, 450e9, *_NODE),
    "h200": Chip(989e12, 450e9, *_NODE),
}
