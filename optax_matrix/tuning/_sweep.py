"""`sweep`: the best of several learning rates for one model."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from optax_matrix._arguments import (
    NotNegative,
    NotNegativeInt,
    PositiveInt,
    check_positive,
    checked,
    is_function,
)
from optax_matrix.matrices.use.models import is_model, split
from optax_matrix.tuning import _batches
from optax_matrix.tuning._progress import shown
from optax_matrix.tuning._result import Sweep
from optax_matrix.tuning._runs import Runs
from optax_matrix.tuning._trainings import training


@checked
def sweep(
    make: Any,
    loss: Any,
    params: Any,
    batches: Any,
    *,
    rates: Any,
    steps: PositiveInt | None = None,
    step: Any = None,
    evaluate: Any = None,
    seeds: Any = None,
    widen: NotNegativeInt = 4,
    memory: NotNegative = 2**30,
    progress: Any = True,
) -> Sweep:
    """Trains a model at several learning rates and says which is best.

    All rates start from the same parameters and see the same batches. A run whose loss
    is not finite has diverged and stops. In one program, the runs stop when all rates
    have diverged. While the best rate is the smallest or the largest one, the next
    rate beyond it is trained, too, at the same ratio.

    If all runs fit into `memory`, they are one program, `jax.vmap` over the step, with
    the same losses up to rounding. This is fast for small models. A branch that some
    methods take at every tenth step (`soap`, `galore`) is then computed at every step.
    ``memory=0`` trains one rate after the other. The losses then equal those of a plain
    loop around the same step bit for bit.

    Sharded parameters stay sharded, and `memory` counts the bytes of all devices
    together. On a mesh of ``Auto`` axes, JAX replicates those parts of the first state
    that are zeros; after the first step they are sharded. On ``Explicit`` axes they are
    sharded from the start; call `sweep` within `jax.set_mesh`.

    Args:
        make: Function from a learning rate to an optimizer: any of optax, so that
            AdamW gets the same search. Build schedules inside of it. The rate is
            traced. `optax.warmup_cosine_decay_schedule` refuses a traced rate; then
            each rate is compiled by itself, with a warning. `optax.join_schedules` of a
            linear and a cosine schedule accepts it.
        loss: ``loss(params, batch)``, a scalar; None if `step` is given.
        params: What is trained: a tree of parameters, or a model of NNX or Equinox,
            which is then passed to the loss. It is not changed. If `seeds` is given, a
            function from a seed to such a tree or model.
        batches: Array ``(steps, ...)`` or iterable of batches, such as ``list(zip(x,
            y))`` for stacked arrays x and y. Whatever changes from step to step, such
            as the key of a dropout, is a part of the batch. If `seeds` is given, this
            may be a function of a seed.
        rates: The first learning rates, in any order, or a single one, to which its
            half and its double are added.
        steps: Number of batches that each run trains on; None for all.
        step: Training step of your own. For an NNX model, ``step(model, optimizer,
            batch)`` changes an ``nnx.Optimizer`` and the model in place and returns the
            loss; else ``step(tx, params, state, batch)`` returns parameters, state and
            loss. (Of Linen's variables with several collections, the optimizer's state
            is that of ``"params"``.)
        evaluate: Function of the trained parameters (or model) to a scalar that is
            minimized, such as a validation loss. None for the mean of the last tenth of
            the training losses.
        seeds: Sequence of integers; every rate is trained from each, and the mean
            decides.
        widen: Largest number of rates that are added.
        memory: Bytes that parameters and states of all runs may take in one program.
        progress: Whether to show bars on a terminal, or a function of rate, steps done,
            all steps and loss that is called instead.

    Returns:
        A `tuning.Sweep`: ``best``, ``losses``, ``finals``, ``print`` and ``plot``.

    Raises:
        ValueError: If a rate is not positive, an argument does not fit another, a loss
            is not a scalar, a parameter is a Python number, batches are missing, or
            every run diverges.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> batches = jax.random.normal(jax.random.key(0), (100, 2, 16, 8))
        >>> params = {"kernel": jnp.zeros((8, 8)), "bias": jnp.zeros(8)}
        >>> def loss(params, batch):
        ...     x, noise = batch
        ...     error = x @ params["kernel"] + params["bias"] - jnp.flip(x, -1)
        ...     return jnp.mean((error - noise / 10) ** 2)
        >>> def make(rate):
        ...     cosine = lambda peak: optax.cosine_decay_schedule(peak, 100)
        ...     return om.muoneq(cosine(4 * rate), other_learning_rate=cosine(rate))
        >>> found = om.sweep(make, loss, params, batches, rates=(0.01, 0.02, 0.04))
        >>> print(found)
        rate  loss
        0.01  0.01...
        0.02  0.01...
        0.04  0.01...  <- best
        0.08  0.01...
        loss: mean of the last 10 of 100 training losses; 100 steps, in one program
        >>> tx = make(found.best)
    """
    _check_functions(make, loss, step, evaluate)
    _check_seeds(seeds, params)
    given = np.ravel(rates).tolist()
    for rate in given:
        check_positive("rates", rate)
    if not given:
        raise ValueError("`rates` must have one rate or more, got none; pass (1e-3,).")
    given = sorted({*map(float, given)})
    models = [params] if seeds is None else [params(seed) for seed in seeds]
    _check_arrays(models[0])
    read = _batches.read(batches, steps, seeds)
    runs = Runs(training(make, loss, step, models[0]), models, read, evaluate)
    last = f"mean of the last {runs.last} of {runs.steps} training losses"
    measure = last if evaluate is None else "validation loss"
    every: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    most = len(given) + widen
    with shown(progress) as show:
        while given:
            every |= runs.train(given, memory, show)
            losses, finals = ({r: every[r][i] for r in sorted(every)} for i in (0, 1))
            found = Sweep(losses, finals, measure, runs.kind == "together")
            given = _beyond(found)[: most - len(every)]
    _check_some_are_finite(found)
    return found


def _check_functions(make: Any, loss: Any, step: Any, evaluate: Any) -> None:
    if not is_function(make):
        raise ValueError(
            "`make` must be a function from a learning rate to an optimizer, got "
            f"{type(make).__name__}; write lambda rate: optax.adamw(rate)."
        )
    if (loss is None) == (step is None):
        raise ValueError(
            "`loss` must be a function, or None if `step` is given; pass one of the "
            "two."
        )
    for name, value in {"loss": loss, "step": step, "evaluate": evaluate}.items():
        if value is not None and not callable(value):
            raise ValueError(
                f"`{name}` must be a function or None, got {type(value).__name__}; see "
                "the order of the arguments."
            )


def _check_seeds(seeds: Any, params: Any) -> None:
    is_made = is_function(params) and not is_model(params)
    if is_made != (seeds is not None):
        raise ValueError(
            "`params` must be a function from a seed if `seeds` is given, and else "
            f"parameters or a model, got {type(params).__name__}; pass seeds=(0,), or "
            "write lambda seed: ..."
        )
    if seeds is not None and not (isinstance(seeds, Sequence) and len(seeds)):
        raise ValueError(
            f"`seeds` must be a sequence of one integer or more, got {seeds!r}; pass "
            "(0, 1, 2)."
        )


def _check_arrays(params: Any) -> None:
    leaves = jax.tree.leaves(params, is_leaf=is_model)
    numbers = [x for x in leaves if isinstance(x, float)]
    if numbers or not jax.tree.leaves(split(params)[0]):
        got = f"the Python number {numbers[0]}" if numbers else "none"
        raise ValueError(
            f"`params` must have arrays of floats, got {got}; only arrays are trained, "
            "so write jnp.asarray(1.0)."
        )


def _beyond(found: Sweep) -> list[float]:
    """The next rates beyond the best one, if it is at an end."""
    rates, beyond = found.rates, []
    if len(rates) == 1:
        beyond = [rates[0] / 2, rates[0] * 2]
    elif found.best == rates[0]:
        beyond = [rates[0] * rates[0] / rates[1]]
    elif found.best == rates[-1]:
        beyond = [rates[-1] * rates[-1] / rates[-2]]
    beyond = [float(f"{rate:.6g}") for rate in beyond]
    return [rate for rate in beyond if rate not in rates]  # After rounding.


def _check_some_are_finite(found: Sweep) -> None:
    if math.isfinite(found.finals[found.best].mean()):
        return
    finite = [int(np.isfinite(x).sum(-1).min()) for x in found.losses.values()]
    if min(finite) == found.losses[found.best].shape[-1]:
        said = "`evaluate` is finite for none of them; call it once by itself."
    elif max(finite) == 0:
        said = "the loss is not finite before the first update; call it once by itself."
    else:
        said = (
            f"the first at step {min(finite) + 1}; try smaller ones, or clip the "
            "gradients."
        )
    rates = ", ".join(f"{rate:g}" for rate in found.rates)
    raise ValueError(f"Every rate of {rates} diverged: {said}")
