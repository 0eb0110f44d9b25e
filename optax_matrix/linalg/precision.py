r"""Which precision the products of a method have on each platform.

A kernel or block multiplies by the function of the class of what it computes:

===============  =======================================================================
``project``      rotations into a frame and back, and power steps
``statistics``   averages of Gram matrices
``bases``        orthonormal columns, and exact polar factors
``roots``        what rounding harms most: inverse roots, eigenvalues, maps from
                 skew-symmetric to orthogonal blocks, rotations of weights; coordinates
                 in a basis of low rank, and residuals
===============  =======================================================================

Their precision is that of the policy in force while a step is traced. `on_matrices`
sets the policy by its argument ``precision`` (``using``); elsewhere products are exact.
On accelerators a product of float32 matrices can consist of several narrower products:

==================  =================  ==============  =================  ==============
policy, platform    project            statistics      bases              roots
==================  =================  ==============  =================  ==============
``exact``           float32            float32         float32            float32
``default``, CUDA   three bf16 passes  three bf16      three TF32         three TF32
``default``, TPU    three bf16 passes  three bf16      three, or float32  float32
``fast``, CUDA      one TF32 pass      one             three TF32         three TF32
``fast``, TPU       three bf16 passes  one             three, or float32  float32
==================  =================  ==============  =================  ==============

On a TPU bases of more than 2048 columns are found in float32. Newton-Schulz has factors
in bfloat16, unless the policy is ``exact``. CPUs, AMD's GPUs, CUDA devices before
compute capability 8.0 (which have no TF32) and matrices in float64 are always exact.

Three TF32 passes have the error of float32 in all that was measured, three bfloat16
passes 2e-5 of one step's size, in 0.56 of the time on an H200. ``fast`` gives up more:
of gradients of low rank, rounding of one TF32 pass is above the level at which
coordinates count as noise, and 60 to 99% of an update lie outside their range (of rank
2, 96 x 256: `galore` and `dion` 84%, `alice` 62%, `eigen_adam` 99%). Floors scaled to
TF32 would cut 19% of `galore`'s update at full rank.

The platform is found when a program is compiled, and whether CUDA devices have TF32
when it is traced: from the mesh of the arrays, else from the default devices. CPUs
refuse programs that are exported for CUDA, too.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision as Passes
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.products import Product, full_dot, lowered_dot


class Products(NamedTuple):
    """The product of each class, and the dtype of Newton-Schulz's factors.

    Attributes:
        project: For rotations into a frame and back, and power steps.
        statistics: For averages of Gram matrices.
        bases: For orthonormal columns, up to 2048 of them, and exact polar factors.
        roots: For roots, eigenvalues, skew-symmetric blocks, coordinates, residuals;
            and for orthonormal columns if there are more.
        compute_dtype: That of `newton_schulz`.
    """

    project: Product = full_dot
    statistics: Product = full_dot
    bases: Product = full_dot
    roots: Product = full_dot
    compute_dtype: Any = None


EXACT = Products()


Policy = Literal["default", "fast", "exact"]


def check_precision(name: str, value: Any) -> None:
    """Raises unless a value is the name of a policy, or products."""
    if not isinstance(value, Products) and value not in get_args(Policy):
        raise ValueError(
            f"`{name}` must be 'default', 'fast', 'exact' or a "
            f"`linalg.precision.Products`, got {value!r}."
        )


Precision = Policy | Annotated[Products, check_precision, "Products"]


def products_of(precision: Precision) -> Products:
    """The products of a policy, by name; the same ones at every call."""
    return precision if isinstance(precision, Products) else _named(precision)


@functools.lru_cache
def _named(precision: str) -> Products:
    if precision == "exact":
        return EXACT
    tf32 = DotAlgorithmPreset.TF32_TF32_F32_X3
    bfloat16 = lowered_dot(DotAlgorithmPreset.BF16_BF16_F32_X3, Passes.HIGH)
    products = Products(
        project=bfloat16,
        statistics=bfloat16,
        bases=lowered_dot(tf32, Passes.HIGH),
        roots=lowered_dot(tf32, Passes.HIGHEST),
        compute_dtype="auto",
    )
    if precision == "default":
        return products
    one = DotAlgorithmPreset.TF32_TF32_F32
    return products._replace(
        project=lowered_dot(one, Passes.HIGH),
        statistics=lowered_dot(one, Passes.DEFAULT),
    )


# JAX's caches include this context, so that a trace under one policy is not used under
# another. As with JAX's own default precision, no block or kernel has to pass it on.
_POLICY = jax.make_user_context(EXACT)


def using(precision: Precision) -> Any:
    """A context manager: the policy of what is traced inside."""
    return _POLICY(products_of(precision))


def current() -> Products:
    """The products of the policy in force."""
    return _POLICY.value


def project(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply for rotations into a frame and back, and for power steps."""
    return current().project(jnp.asarray(x), jnp.asarray(y))


def statistics(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply for averages of Gram matrices."""
    return current().statistics(jnp.asarray(x), jnp.asarray(y))


def bases(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply for orthonormal columns and exact polar factors."""
    return current().bases(jnp.asarray(x), jnp.asarray(y))


def roots(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply for roots, eigenvalues, skew-symmetric blocks and coordinates."""
    return current().roots(jnp.asarray(x), jnp.asarray(y))


def of_columns(count: int) -> Product:
    """The product for making this many columns orthonormal."""
    return bases if count <= Thresholds.narrow_columns else roots


def pinned(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function under the policy of now: JAX traces derivatives later."""
    products = current()

    def run(*args: Any, **kwargs: Any) -> Any:
        with using(products):
            return f(*args, **kwargs)

    return run
