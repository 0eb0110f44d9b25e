"""Checkpoints of a run: weights, optimizer state, position in the data, step.

Orbax writes each checkpoint under a temporary name and renames it when it is complete.
If the process is killed while it saves, the previous checkpoint is still there.
"""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """The checkpoints of one run; the two latest are kept.

    Args:
        directory: Directory of the checkpoints; made if missing.
    """

    def __init__(self, directory: pathlib.Path):
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        self._manager = ocp.CheckpointManager(directory.resolve(), options=options)

    def save(self, step: int, state: Any, position: dict) -> None:
        """Writes a checkpoint in the background; returns when the arrays are copied.

        Args:
            step: Number of updates done.
            state: Tree of arrays.
            position: The data iterator's `get_state()`.
        """
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(position)
        )
        self._manager.save(step, args=items)

    def exist(self) -> bool:
        """Whether there is a complete checkpoint."""
        return self._manager.latest_step() is not None

    def restore(self, like: Any) -> tuple[int, Any, dict]:
        """The latest checkpoint.

        Args:
            like: Tree of arrays of the same structure, shapes and dtypes.

        Returns:
            Step, state and the position in the data.
        """
        step = self._manager.latest_step()
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=items)
        return step, restored.state, restored.data

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()
