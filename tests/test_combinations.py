"""Random combinations of wrappers: as the recipe alone, in every respect.

The updates are the same, a saved state goes on bit for bit, and a scan can carry it.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _combinations import RATE, draw, mesh_of, optimizer, plain, saved, tree
from _registry import ROTATED

STEPS, SAVED = 4, 2
CASES, CHUNK = 500, 20
DAILY = 1
# Rounding to bfloat16 or to eight bits may fall to the other side.
TOLERANCE = {"float32": 2e-3, "bfloat16": 3e-2}


class Alone:
    """One run."""

    def __init__(self, case):
        self.tx = optimizer(case)
        self.params, *self.stream = (tree(seed, case) for seed in range(STEPS + 1))
        self.init, self.update = self.tx.init, jax.jit(self.tx.update)

    def fast(self, params):
        """The parameters as the recipe alone has them."""
        return params

    def save(self, how, state, params):
        """A state through a file."""
        return saved(how, state, self.init(params), params)


class Lanes(Alone):
    """Runs at two rates, by `jax.vmap`; the first is that of the recipe alone."""

    def __init__(self, case):
        super().__init__(case)
        rates = np.float32([1.0, 3.0]) * RATE
        self.params = jax.tree.map(lambda x: jnp.stack([x, x]), self.params)
        init = jax.vmap(lambda rate, params: optimizer(case, rate).init(params))
        self.init = lambda params: init(rates, params)

        def update(rate, grads, state, params):
            return optimizer(case, rate).update(grads, state, params)

        lanes = jax.jit(jax.vmap(update, in_axes=(0, None, 0, 0)))
        self.update = lambda *args: lanes(rates, *args)

    def fast(self, params):
        return jax.tree.map(lambda x: x[0], params)

    def save(self, how, state, params):
        how = how if how in ("pickle", "msgpack") else "pickle"
        return saved(how, state, self.init(params), params)


class Lookahead(Alone):
    """Inside of `optax.lookahead` that never synchronizes."""

    def __init__(self, case):
        super().__init__(case)
        self.tx = optax.lookahead(self.tx, 1000, 0.5)
        self.init, self.update = self.tx.init, jax.jit(self.tx.update)
        self.params = optax.LookaheadParams.init_synced(self.params)

    def fast(self, params):
        return params.fast

    def save(self, how, state, params):
        return saved(how, state, self.init(params), params.fast)


RUNS = {"loop": Alone, "vmap": Lanes, "lookahead": Lookahead}


def trained(run, state, params, stream):
    """The parameters, updates and states of each step."""
    seen = []
    for grads in stream:
        updates, state = run.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        seen.append((params, updates, state))
    return seen


@functools.lru_cache(maxsize=64)
def alone(case):
    """The updates of the recipe alone."""
    run = Alone(case)
    seen = trained(run, run.init(run.params), run.params, run.stream)
    return [updates for _, updates, _ in seen]


def assert_near(got, want, tolerance):
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        x, y = (np.asarray(a, np.float64) for a in (x, y))
        error, size = np.linalg.norm(x - y), np.linalg.norm(y)
        assert error <= tolerance * size, error / size


def compared(case):
    """In how many steps the updates have to be those of the recipe alone."""
    exact = case.dtype == "float32"
    if "in_float32" in case.wrappers and not exact:
        return 0
    # A frame turns with the rounding of its gradient, and signs and null spaces in it.
    turns = case.name.split("-")[0] in ROTATED
    exact &= case.place is None
    return 1 if turns and not exact else STEPS


def types(pytree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), pytree)


def check(seed):
    """Raises unless the case of a seed is right."""
    case = draw(seed)
    mesh = mesh_of(case)
    wanted = alone(plain(case))
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        check_case(case, wanted)


def check_case(case, wanted):
    run = RUNS[case.run](case)
    start = run.init(run.params)
    seen = trained(run, start, run.params, run.stream)
    for params, updates, state in seen:
        assert types(state) == types(start)
        assert types(updates) == types(params) == types(run.params)
    for (_, updates, _), want in zip(seen[: compared(case)], wanted, strict=False):
        assert_near(run.fast(updates), want, TOLERANCE[case.dtype])

    params, _, state = seen[SAVED - 1]
    again = trained(run, run.save(case.save, state, params), params, run.stream[SAVED:])
    for got, want in zip(again, seen[SAVED:], strict=True):
        # A portable form does not have what fills up the owners.
        size = 3 if mesh_of(case) is None else 2
        jax.tree.map(np.testing.assert_array_equal, got[:size], want[:size])

    def body(carry, grads):
        updates, state = run.update(grads, *carry)
        return (state, optax.apply_updates(carry[1], updates)), None

    stream = jax.tree.map(lambda *x: jnp.stack(x), *run.stream)
    jax.eval_shape(lambda *args: jax.lax.scan(body, *args), (start, run.params), stream)


seeds = [range(start, start + CHUNK) for start in range(0, CASES, CHUNK)]


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(DAILY))
def test_combinations(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_more_combinations(seeds):
    failed = {}
    for seed in seeds:
        try:
            check(seed)
        except Exception as error:
            failed[seed] = (draw(seed), error)
    assert not failed
