"""Scion: steepest descent under a norm for each kind of leaf."""

from functools import partial
from typing import Any, Unpack

import optax

from optax_matrix._arguments import (
    Decay,
    Dtype,
    Kernel,
    Pattern,
    Positive,
    Rate,
    unchecked,
)
from optax_matrix.matrices import by_path
from optax_matrix.matrices.ends import ends_of
from optax_matrix.matrices.rules import PathRule
from optax_matrix.recipes._method import Method, decayed_others
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import lmo, match_rms, momentum
from optax_matrix.transforms.norm_balls import BallNorm, EndNorm
from optax_matrix.transforms.wrappers import keep_dtype
from optax_matrix.tree.ends import by_end

_keep_dtype = unchecked(keep_dtype)  # Called in every trace of a step.


@recipe
def scion(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    norm: BallNorm = "spectral",
    radius: Positive = 50.0,
    first: Pattern | None = None,
    first_norm: EndNorm = "sign",
    first_radius: Positive | None = None,
    last: Pattern | None = None,
    last_norm: EndNorm = "sign",
    last_radius: Positive | None = None,
    polar: Kernel = "newton_schulz",
    weight_decay: Rate = 1.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Scion: every leaf steps to the boundary of the ball of its norm.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta) G_t, \qquad
        W_{t+1} = (1 - \eta \lambda) W_t - \eta \,
        \arg\max_{\|D\| \le \rho} \langle M_t, D \rangle

    With ``weight_decay=1.0`` the weights stay in the ball (the constrained variant, a
    Frank-Wolfe method), with 0.0 they are free (the unconstrained one). The state is
    one momentum per leaf; no leaf has Adam. Norms (`lmo`) and radii by kind of leaf:

    * matrices: ``norm``, by default :math:`\rho \sqrt{m/n} \, \mathrm{polar}(M)`
    * embeddings, tables and tokens, whose input is one-hot: ``first_norm``, by default
      :math:`\rho_1 \mathrm{sign}(M)`
    * heads: ``last_norm``, by default :math:`\rho_2 \, \mathrm{sign}(M) / n`
    * an embedding that is also the head, which is the largest one where no leaf has the
      name of a head: as a head whose input is the embedding's width
    * vectors (biases, scales of norms): the root mean square :math:`\rho` along the
      last axis; they do not decay, unless ``weight_decay_mask=True``
    * other leaves that are no matrices, such as routers: :math:`\rho \,
      \mathrm{sign}(M) / n`

    Args:
        learning_rate: Learning rate, a number or a schedule; in the authors' code
            2.4e-4 to 3.6e-4 for language models.
        b1: Decay rate :math:`\beta` of the momentum; the authors' ``momentum`` is one
            minus this.
        norm: Norm of the matrices: ``"spectral"``, ``"row"``, ``"column"`` or
            ``"sign"``.
        radius: Radius :math:`\rho` of the matrices.
        first: Regular expression of the paths of first layers, which then are no
            matrices (a tree of dimension numbers must leave them out); None for
            embeddings, tables and tokens.
        first_norm: Norm of first layers, without ``"spectral"``.
        first_radius: Radius :math:`\rho_1` of first layers; None for a third of
            ``radius``.
        last: Regular expression of the path of the last layer, which then is no matrix;
            None for heads.
        last_norm: Norm of the last layer, without ``"spectral"``.
        last_radius: Radius :math:`\rho_2` of the last layer; None for 60 times
            ``radius`` if it is an embedding, and else 10/3 times.
        polar: Kernel that returns the polar factor.
        weight_decay: The constraint :math:`\lambda`: 1.0, or 0.0 for none. As a
            decoupled weight decay, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree. Rates and radii belong together: a step has
        their product.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.scion(1.0, radius=2.0, polar="polar_svd", weight_decay=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0])), "bias": jnp.ones(2)}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist(), float(-updates["bias"][0].round(3))
        ([[2.0, 0.0], [0.0, 2.0]], 2.0)

    References:
        Pethick et al., `Training Deep Learning Models with Norm-Constrained LMOs
        <https://arxiv.org/abs/2502.07529>`_ (Scion), 2025, by its authors' `code
        <https://github.com/LIONS-EPFL/scion>`_. Radii are those of its language models:
        50 and 3000 where embedding and head are tied, 1 : 3 : 10 where not. Deviations:
        vectors are not constrained by default. Convolutions are matrices (out, in k k),
        whose radius is k times the authors'. A first layer with dense inputs is any
        other matrix (there the size is :math:`\max(1, \sqrt{m/n})`). Newton-Schulz has
        the precision of `muon`'s; there is no epsilon beside the norms of
        vectors, rows and columns.
    """
    given = numbers = common.get("dimension_numbers")
    said = {pattern: None for pattern in (last, first) if pattern is not None}
    if said and (given is None or isinstance(given, PathRule)):
        numbers = by_path(numbers=said, otherwise=given)
    ends = partial(ends_of, first=first, last=last, dimension_numbers=given)

    average = momentum(b1, dtype=mu_dtype)
    chain = optax.chain(average, lmo(norm, radius, polar=polar))

    size: Any = radius / 3 if first_radius is None else first_radius
    of_place = {
        "vector": match_rms(radius),
        "inner": lmo("sign", radius),
        "first": lmo(first_norm, size, one_hot=True),
    }
    for place, ratio in (("tied", 60.0), ("last", 10.0 / 3.0)):
        size = ratio * radius if last_radius is None else last_radius
        of_place[place] = lmo(last_norm, size)

    def other(params: Any) -> optax.GradientTransformation:
        steps = by_end(of_place, ends, params)
        rate: Any = common.get("other_learning_rate")
        return optax.chain(
            _keep_dtype(optax.chain(average, steps)),
            decayed_others(weight_decay, common, params),
            optax.scale_by_learning_rate(learning_rate if rate is None else rate),
        )

    return Method(chain, dimension_numbers=numbers, other=other)


scale_by_scion = direction(
    scion, without=["first_norm", "first_radius", "last_norm", "last_radius"]
)
