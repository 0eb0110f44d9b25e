"""Checkpoints of a run: weights, optimizer state, position in the data, step.

Orbax writes each checkpoint under a temporary name and renames it when it is complete.
If the process is killed while it saves, the previous checkpoint is still there. Each
one holds a checksum of its arrays, which Orbax does not have.
"""

import contextlib
import json
import logging
import pathlib
import shutil
import sys
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from examples.pretrain.directory import check_same
from examples.pretrain.errors import UserError, first_line

# Orbax raises what fails and also logs it with a traceback; only the exception is
# wanted.
for library in ("absl", "asyncio"):
    logging.getLogger(library).setLevel(logging.CRITICAL)


def _without_orbax(hook):
    """A hook that drops the warnings about coroutines of Orbax.

    Orbax leaves them behind when one array fails.
    """

    def filtered(info):
        code = getattr(info.object, "cr_code", None)
        late = str(info.exc_value) == "Event loop is closed"
        if not late and "orbax" not in getattr(code, "co_filename", ""):
            hook(info)

    return filtered


sys.unraisablehook = _without_orbax(sys.unraisablehook)


def _barrier():
    """Orbax's barrier, but a process that failed to write does not wait there.

    The others never come, as they wait for what it has not written: ten minutes long.
    """
    wait = ocp.multihost.get_barrier_sync_fn()

    def barrier(**options):
        if (failure := sys.exc_info()[1]) is not None:  # On its way to the caller.
            raise failure
        wait(**options)

    return barrier


class Checkpoints:
    """The checkpoints of one run; the two latest are kept.

    Every method raises `UserError` if the disk fails, and leaves JAX's own errors, as
    of a lost process, as they are.

    Args:
        directory: Directory of the checkpoints; made if missing.
        settings: The settings that decide the outcome of the run. They are stored with
            the checkpoints, and a directory with other settings is refused. None stores
            none.
        flag: The option of the command that names the directory, for error messages.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        settings: dict | None = None,
        flag: str = "--out",
    ):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            cleanup_tmp_directories=True,
            # Otherwise threads wait ten minutes for a folder that cannot be made.
            async_options=ocp.AsyncOptions(
                create_directories_asynchronously=False, barrier_sync_fn=_barrier()
            ),
        )
        self._directory = directory.resolve()
        with self._told("open"):
            self._manager = ocp.CheckpointManager(
                self._directory, options=options, metadata=settings
            )
        if settings is not None:
            with self._told("open"):
                recorded = self._manager.metadata().custom_metadata
            check_same(recorded, json.loads(json.dumps(settings)), directory, flag)

    def save(self, step: int, state: Any, position: Any) -> None:
        """Writes a checkpoint in the background; returns when the arrays are copied.

        Args:
            step: Number of updates done.
            state: Tree of arrays.
            position: The data iterator's `get_state()`, or anything else that is JSON.

        Raises:
            UserError: If the state is not finite; it would displace the last that is.
        """
        finite, checksum = _examine(state)
        if not finite:
            last = self._manager.latest_step()
            kept = "there is no checkpoint" if last is None else f"step {last} is kept"
            raise UserError(
                f"The state after step {step} is not finite and was not saved; {kept}. "
                f"Start again with a smaller --learning-rate."
            )
        with self._told("write"):
            if not self._directory.is_dir():
                raise FileNotFoundError("the folder has vanished")
            record = {"position": position, "checksum": int(checksum) ^ _crc(position)}
            items = ocp.args.Composite(
                state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(record)
            )
            self._manager.save(step, args=items)

    def exist(self) -> bool:
        """Whether there is a complete checkpoint."""
        return self._manager.latest_step() is not None

    def restore(self, like: Any) -> tuple[int, Any, Any]:
        """The latest checkpoint that is whole; says so if it is not the latest.

        Damaged ones are set aside under another name. With several processes only the
        latest is tried.

        Args:
            like: Tree of arrays of the same structure, shapes and dtypes.

        Returns:
            Step, state and the position in the data.

        Raises:
            UserError: If none is whole.
        """
        damaged = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                state, position = self._read(step, like)
            except jax.errors.JaxRuntimeError:
                raise
            except Exception as error:  # Orbax and TensorStore raise different ones.
                damaged[step] = first_line(error)
                # Other processes may have read their part: all would have to agree.
                if jax.process_count() > 1:
                    break
                continue
            self._set_aside(damaged, step)
            return step, state, position
        latest = max(damaged)
        remedy = "restore them from a copy, or start again elsewhere"
        if len(self._manager.all_steps()) > len(damaged):
            remedy = f"rename {latest} to damaged-{latest} to go on from the one before"
        raise UserError(
            f"In {self._directory}, none of the checkpoints that were tried can be "
            f"read (step {latest}: {damaged[latest]}); {remedy}."
        )

    def _read(self, step, like):
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=items)
        position = restored.data["position"]
        checksum = int(_examine(restored.state)[1]) ^ _crc(position)
        if checksum != restored.data["checksum"]:
            raise ValueError("its content does not have the checksum that was saved")
        return restored.state, position

    def _set_aside(self, damaged, whole):
        for step, reason in damaged.items():
            name = f"damaged-{step}"
            with self._told("write"):
                shutil.rmtree(self._directory / name, ignore_errors=True)
                (self._directory / str(step)).rename(self._directory / name)
            print(
                f"The checkpoint of step {step} is damaged ({reason}) and now called "
                f"{name}; the run continues from step {whole}.",
                file=sys.stderr,
            )
        if damaged:
            self._manager.reload()

    def close(self) -> None:
        """Waits until everything is written."""
        with self._told("write"):
            try:
                self._manager.wait_until_finished()
            finally:
                self._manager.close()

    @contextlib.contextmanager
    def _told(self, what):
        """Makes one line of every error."""
        try:
            yield
        except jax.errors.JaxRuntimeError:  # Not the disk: another process is gone.
            raise
        except Exception as error:  # Orbax and TensorStore raise different ones.
            raise UserError(
                f"Cannot {what} the checkpoints in {self._directory} "
                f"({first_line(error)}); repair or free the disk, then resume the run."
            ) from None


@jax.jit
def _examine(state):
    """Whether all numbers of a tree are finite, and a checksum of their bits.

    One program for all arrays: with one for each, two processes waited for each other.
    """
    finite, checksum = jnp.bool_(True), jnp.uint32(0)
    for index, x in enumerate(jax.tree.leaves(state)):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if jnp.issubdtype(x.dtype, jnp.inexact):
            finite &= jnp.isfinite(x).all()
            x = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
        checksum += (2 * index + 1) * jnp.sum(x, dtype=jnp.uint32)
    return finite, checksum


def _crc(position):
    """A checksum of a value as JSON."""
    text = json.dumps(json.loads(json.dumps(position)), sort_keys=True)
    return zlib.crc32(text.encode())
