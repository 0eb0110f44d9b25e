"""What a placement is: where stacks and their state live, and where a step runs."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.statistics import Sides
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.layout import Layout

L = TypeVar("L", bound=Layout)

Leaves = Mapping[str, Any]
"""Leaves of a parameter tree, or of one like it, by path."""

Views = Mapping[str, MatrixView]

MakeState = Callable[[Any, Any, Any], Any]
"""``make_state(local, stacks, arrays)`` returns an `OnMatricesState`."""

Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""``step(local, stacks, state, arrays)`` returns new stacks and the new state.

``stacks`` has ``"updates"`` and, if the transformation uses them, ``"params"``, and
statistics under their names.
"""


@runtime_checkable
class Placement(Protocol[L]):
    """Decides for `on_matrices` where stacks and state live, and runs steps there.

    `on_matrices` defines what is computed, and a placement where. A placement gets the
    work as a function and calls it with ``local``, the layout of the matrices that one
    device has, and with their stacks. Without a mesh these are all matrices; inside
    ``shard_map`` they are the device's own. The layout of whole stacks is ``layout``.

    With ``placement=None`` arrays keep their sharding (``KeepSharding``);
    `optax_matrix.owners` gives every matrix to one device, and `optax_matrix.quantized`
    wraps either.
    """

    @property
    def wire_dtype(self) -> Any:
        """Dtype in which gradients and updates travel between devices.

        It applies if it is narrower than their own dtype; None is their own dtype.
        """
        ...

    def layout(
        self, leaves: Leaves, views: Views, max_batch: int | None, pairs: Pairs
    ) -> L:
        """Groups the matrix leaves into stacks.

        Args:
            leaves: Parameters (or updates, if there are none) by path, or their shapes.
            views: The views of those that are matrices.
            max_batch: Largest number of matrices in a stack on one device.
            pairs: Leaves whose matrices must be at the same places of two stacks.

        Returns:
            The layout of whole stacks. It is the same for the same arguments: `update`
            computes it again, and nothing is kept from `init`.
        """
        ...

    def init(
        self,
        layout: L,
        make_state: MakeState,
        params: Leaves,
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        """Creates the state on its devices.

        Args:
            layout: What `layout` returned.
            make_state: ``make_state(local, stacks, arrays)``.
            params: The matrix leaves, by path.
            arrays: Traced hyperparameters, the same on all devices.
            needs_params: Whether the stacks must hold the parameters; otherwise they
                are zeros of the same shapes and dtypes.

        Returns:
            The state of whole stacks.
        """
        ...

    def update(
        self,
        layout: L,
        step: Step,
        leaves: Mapping[str, Leaves],
        state: Any,
        arrays: Any,
        sides: Mapping[str, Sides],
        make_state: MakeState,
    ) -> tuple[Leaves, Any]:
        """Runs one step on the devices of the state.

        Args:
            layout: What `layout` returned.
            step: ``step(local, stacks, state, arrays)``.
            leaves: The matrix leaves of ``"updates"`` and, if the transformation uses
                them, of ``"params"``, by path; under other names statistics of them.
            state: The state of whole stacks.
            arrays: Traced hyperparameters and extra arguments, the same on all devices.
            sides: The sides of each statistic, by its name among ``leaves``.
            make_state: As in `init`.

        Returns:
            The new updates by path, and the new state.
        """
        ...

    def specs(
        self, layout: L, state: Any, param_specs: Mapping[str, tuple], mesh: Any
    ) -> Any:
        """Returns how the state is sharded, or is to be.

        Args:
            layout: What `layout` returned.
            state: The state of whole stacks, or its shapes.
            param_specs: For each leaf, by path, the mesh axes or logical names of its
                axes, as far as they are known.
            mesh: The mesh; None if it is unknown.

        Returns:
            A `jax.sharding.PartitionSpec` in full rank for each array.
        """
        ...
