"""Matrix optimizers for JAX, as chains of composable optax blocks.

``om.<name>(learning_rate, ...)`` is a complete optimizer of the parameters of a model.
Use it like an optimizer of optax:

>>> import jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"kernel": jnp.eye(4, 8), "bias": jnp.zeros(8)}
>>> tx = om.muoneq(3e-3)
>>> updates, state = tx.update(params, tx.init(params), params)

These are the packages. Each imports only packages below it::

    recipes   weights   diagnostics   the published methods; tools around them
       |         |           |
       |         |       checkpoint   state by parameter path
       +----+----+-----------+
            |
          tree                        chains of blocks on any parameter tree
            |
        sharding   quantization       where stacks live, and in how many bits
            |
         stacks        transforms     equal matrices together | blocks, in optax
            |              |
        matrices         linalg       which leaves, seen how  | kernels, on arrays

* `linalg`: kernels, pure functions of matrices. They know arrays, not gradients.
* `transforms`: blocks, optax transformations of stacks of matrices. They know optimizer
  state, not parameter trees.
* `matrices`: which leaves of a tree are matrices, and how each is seen. Orientation,
  heads, layers and experts are translated here and nowhere else.
* `stacks`: equal matrices of all leaves, and their static layout.
* `sharding`: placement of stacks on a mesh. Only whole matrices are sent, never single
  rows. Each step has one ``shard_map``, in which blocks get whole matrices on one
  device.
* `quantization`: optimizer state in eight or four bits, and the codes of arrays.
* `tree`: `on_matrices` runs a chain on the matrices of a tree and another optimizer on
  the rest; `describe` tells where each leaf goes.
* `recipes`: the published methods, each a chain of blocks with the defaults of its
  paper. Recipes contain no arithmetic.
* `checkpoint`: state by parameter path, and state from optax.
* `weights`: initialization, LoRA adapters, and POET with frozen weights.
* `diagnostics`: measures of matrices and of methods; memory, from shapes alone.
* `tuning`: `sweep` finds a learning rate for any optimizer and any model.

In a step, `tree` decides which leaves are matrices (`matrices`), stacks them (`stacks`)
on their devices (`sharding`), runs the chain (`transforms`, which call `linalg`), and
puts the updates back into the tree. A chain is made once, in the factory. If a block
needs to know more about its matrices than their values, such as which are padding, it
asks ``_surroundings.Surroundings`` during the step.

A test reads the imports and keeps these layers apart. `checkpoint`, `diagnostics`,
`quantization`, `tuning` and `weights` load when they are first used. Everything that
optax has (Adam, weight decay, schedules, clipping) comes from optax.

Four rules hold throughout:

**Each matrix by itself.** Every array of the state has the batch axis of its stack in
front or is a scalar, so results do not depend on how matrices are grouped or placed.

**Rows are output neurons.** Blocks see matrices as ``out x in``, as papers write them.
Flax stores ``(in, out)``; `matrices` transposes.

**Scale-free.** Statistics are kept as roots, so that gradients of 1e20 and 1e-20
neither overflow nor vanish in float32, and ``eps`` is relative to the matrix, so that
no update depends on the scale of the loss. (MARS-AdamW and POET are the exceptions:
they have Adam's ``eps``, and MARS-AdamW clips. Leaves that are not matrices have
`optax.adamw`, whose squares overflow above 1.8e19.) Where a paper's ``eps`` is
absolute, the docstring lists this as a deviation. An outlier gradient still stays in
the moving averages, so put `optax.clip_by_global_norm` in front, as the papers do.

**Momentum is an average**, as in the papers, computed in float32 and stored in the
dtype of the parameters (float32 in POET, OFT, MARS and low-rank methods but Dion). So
it follows a schedule of its decay rate, and bfloat16 models get the updates of float32
ones up to that rounding. (With the error feedback of Dion and Dion2 it is a sum.)
"""

import importlib
from typing import TYPE_CHECKING

from optax_matrix import linalg, matrices, recipes, sharding, stacks, transforms, tree
from optax_matrix.matrices import MatrixDimensionNumbers
from optax_matrix.recipes import *  # noqa: F403
from optax_matrix.sharding import owners, state_specs
from optax_matrix.transforms import (
    add_cautious_decay,
    compensate,
    equilibrate,
    equilibrate_with_ema,
    in_eigenbasis,
    inject_hyperparams,
    match_rms,
    momentum,
    orthogonalize,
    precondition,
    project_low_rank,
    rotate,
    row_rms,
    scale_by_second_moment,
    scale_by_shape,
    spo,
    target_rms,
)
from optax_matrix.tree import (
    decay_by_path,
    describe,
    on_matrices,
    per_matrix,
    scale_by_path,
)

if TYPE_CHECKING:  # `__getattr__` below finds these.
    from optax_matrix import checkpoint, diagnostics, quantization, tuning, weights
    from optax_matrix.checkpoint import (
        adopt_state,
        check_restored,
        from_portable,
        to_portable,
    )
    from optax_matrix.quantization import adamw_8bit, quantized
    from optax_matrix.tuning import sweep
    from optax_matrix.weights import (
        apply_adapter,
        average_weights,
        clip_qk,
        evaluation_params,
        extract_adapter,
        initialize_matrices,
        outer,
        reparameterize,
    )

__version__ = "0.2.0"

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *recipes.__all__,
    "MatrixDimensionNumbers",
    "adamw_8bit",
    "add_cautious_decay",
    "adopt_state",
    "apply_adapter",
    "average_weights",
    "check_restored",
    "checkpoint",
    "clip_qk",
    "compensate",
    "decay_by_path",
    "describe",
    "diagnostics",
    "equilibrate",
    "equilibrate_with_ema",
    "evaluation_params",
    "extract_adapter",
    "from_portable",
    "initialize_matrices",
    "in_eigenbasis",
    "inject_hyperparams",
    "linalg",
    "match_rms",
    "matrices",
    "momentum",
    "on_matrices",
    "orthogonalize",
    "outer",
    "owners",
    "per_matrix",
    "precondition",
    "project_low_rank",
    "quantization",
    "quantized",
    "recipes",
    "reparameterize",
    "rotate",
    "row_rms",
    "scale_by_path",
    "scale_by_second_moment",
    "scale_by_shape",
    "sharding",
    "spo",
    "stacks",
    "state_specs",
    "sweep",
    "target_rms",
    "to_portable",
    "transforms",
    "tree",
    "tuning",
    "weights",
]


# The packages that load when they are first used, with their names that are here, too.
_LATER = {
    "checkpoint": {"adopt_state", "check_restored", "from_portable", "to_portable"},
    "diagnostics": set(),
    "quantization": {"adamw_8bit", "quantized"},
    "tuning": {"sweep"},
    "weights": {
        *("apply_adapter", "average_weights", "clip_qk", "evaluation_params"),
        *("extract_adapter", "initialize_matrices", "outer", "reparameterize"),
    },
}


if not TYPE_CHECKING:  # So that type checkers still know which names there are.

    def __getattr__(name: str) -> object:
        """Loads a package when it is first used; says where other names are."""
        for package, names in _LATER.items():
            if name == package or name in names:
                module = importlib.import_module(f"{__name__}.{package}")
                value = module if name == package else getattr(module, name)
                return globals().setdefault(name, value)
        if not name.startswith("_"):
            _refuse(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _refuse(name: str) -> None:
    """Raises if a package has this name, which is not one of the usual ones."""
    own = transforms, linalg, matrices, stacks, sharding, tree
    later = (importlib.import_module(f"{__name__}.{package}") for package in _LATER)
    for package in (*own, *later):
        if name in package.__all__:
            place = package.__name__.replace(__name__, "om")
            raise AttributeError(f"`om.{name}` is `{place}.{name}`.")
