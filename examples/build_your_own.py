"""Seven published methods that are a few lines of blocks each.

They are examples for "Build your own" and not recipes: take one as the start of yours.
Each function gives the chain of one matrix method; `optimizer` turns a chain into an
optimizer of a whole model:

>>> import jax.numpy as jnp
>>> from examples import build_your_own
>>> params = {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}
>>> tx = build_your_own.optimizer(build_your_own.rmnp(), learning_rate=0.01)
>>> state = tx.init(params)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om

Transformation = optax.GradientTransformation


def optimizer(
    chain: Transformation, learning_rate: float, weight_decay: float = 0.0
) -> Transformation:
    """A chain for the matrices and AdamW for the other leaves."""
    after = optax.chain(
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )
    other = optax.adamw(learning_rate, weight_decay=weight_decay)
    return om.on_matrices(chain, after=after, other=other)


def polar(x: jax.Array) -> jax.Array:
    """The polar factor, exactly; `om.linalg.newton_schulz` approximates it fast."""
    return om.linalg.polar_svd(x)


def rmnp(b1: float = 0.95) -> Transformation:
    """RMNP: Muon with the rows' norms in place of the polar factor."""
    return optax.chain(
        om.momentum(b1),
        om.equilibrate(om.linalg.scale_rows),
        om.scale_by_shape("out/in"),
    )


def polar_grad(b1: float = 0.95) -> Transformation:
    """PolarGrad (arXiv 2505.21799): the polar factor times the nuclear norm.

    The step shrinks with the gradient, as that of gradient descent does.
    """

    def direction(m, _):
        u = polar(m)
        return u * jnp.sum(u * m, axis=(-2, -1), keepdims=True)

    return optax.chain(om.momentum(b1), optax.stateless_with_tree_map(direction))


def contra_muon(b1: float = 0.95, amount: float = 0.2) -> Transformation:
    """ContraMuon: Muon less a share of the normalized momentum, at Muon's norm.

    The update of the leading direction becomes smaller than that of the others.
    """

    def direction(m, _):
        u = polar(m)
        largest = jnp.linalg.norm(m, ord=2, axis=(-2, -1), keepdims=True)
        less = u - 0.5 * amount * m / jnp.where(largest > 0, largest, 1)
        norm = lambda x: jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
        return less * norm(u) / jnp.where(norm(less) > 0, norm(less), 1)

    return optax.chain(
        om.momentum(b1, nesterov=True),
        optax.stateless_with_tree_map(direction),
        om.scale_by_shape("out/in"),
    )


def prism(b1: float = 0.95, gamma: float = 1.0) -> Transformation:
    """PRISM: the polar factor of the momentum on top of what is new in the gradient.

    Directions in which the gradient differs from its average move less.
    """

    def direction(m, g):
        stacked = jnp.concatenate([m, gamma * (g - m)], axis=-2)
        return polar(stacked)[..., : m.shape[-2], :]

    def update(m, state, _=None, *, gradient, **__):
        return jax.tree.map(direction, m, gradient), state

    block = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    return om.transforms.with_gradient(optax.chain(om.momentum(b1), block))


def moso(b1: float = 0.95, b2: float = 0.95, b3: float = 0.95) -> Transformation:
    """MOSO: SOAP of the momentum, with RMSProp inside, on the shorter side only."""
    return optax.chain(
        om.momentum(b1),
        om.in_eigenbasis(om.scale_by_second_moment(b2), decay=b3, side="short"),
    )


def spel(learning_rate: float, b1: float = 0.95) -> Transformation:
    """SPEL (arXiv 2601.21487): every matrix stays its own polar factor.

    The weights become the polar factor of where Muon's step leads, so this is a whole
    optimizer; start it from orthogonal kernels.
    """

    def finish(u, w):
        return polar(w - learning_rate * polar(u)) - w

    chain = optax.chain(om.momentum(b1), optax.stateless_with_tree_map(finish))
    other = optax.adam(learning_rate)
    return om.on_matrices(chain, other=other, needs_params=True)


class SodaState(NamedTuple):
    """State of `soda`."""

    count: jax.Array
    start: Any
    inner: Any


def soda(inner: Transformation) -> optax.GradientTransformationExtraArgs:
    """SODA around any optimizer without decay: a pull to the initial weights.

    Step k adds (W0 - W) / (k + 2), k = 0, 1, ..., in place of weight decay.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params):
        # A copy, so that a step that donates the parameters leaves it alone.
        start = jax.tree.map(jnp.copy, params)
        return SodaState(jnp.zeros((), jnp.int32), start, inner.init(params))

    def update(updates, state, params=None, **extra):
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`: SODA pulls them back."
            )
        updates, new = inner.update(updates, state.inner, params, **extra)
        pull = lambda u, w0, w: u + ((w0 - w) / (state.count + 2)).astype(u.dtype)
        updates = jax.tree.map(pull, updates, state.start, params)
        count = optax.safe_increment(state.count)
        return updates, SodaState(count, state.start, new)

    return optax.GradientTransformationExtraArgs(init, update)
