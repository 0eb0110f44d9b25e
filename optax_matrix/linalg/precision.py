r"""Which precision the products of a method have on each platform.

Blocks and recipes take ``precision=`` and find here a product for each class of what
they compute:

===============  =======================================================================
``project``      rotations into a frame and back, and power steps
``statistics``   averages of Gram matrices
``bases``        making columns orthonormal, and exact polar factors
``roots``        what rounding harms most: inverse roots, eigenvalues, maps from
                 skew-symmetric to orthogonal blocks, rotations of weights; coordinates
                 in a basis of low rank and what these leave out
===============  =======================================================================

On accelerators a product of float32 matrices can be made of several of narrower ones:

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

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from inspect import signature
from typing import Annotated, Any, Literal, NamedTuple

from jax.lax import DotAlgorithmPreset, Precision as Passes
from jaxtyping import Array

from optax_matrix._arguments import KERNELS
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg._balanced_polar import balanced_polar
from optax_matrix.linalg._newton_schulz import newton_schulz
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

    def of_columns(self, count: int) -> Product:
        """The product that makes so many columns orthonormal."""
        return self.bases if count <= Thresholds.narrow_columns else self.roots


EXACT = Products()


def _check_products(name: str, value: Any) -> None:
    if not isinstance(value, Products):
        raise ValueError(
            f"`{name}` must be 'default', 'fast', 'exact' or a "
            f"`linalg.precision.Products`, got {value!r}."
        )


Precision = (
    Literal["default", "fast", "exact"]
    | Annotated[Products, _check_products, "Products"]
)


def products_of(precision: Precision) -> Products:
    """The products of a policy, by name; the same ones at every call."""
    return precision if isinstance(precision, Products) else _named(precision)


@lru_cache
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


def with_products(kernel: Callable[..., Any], products: Products) -> Any:
    """A kernel with the products of a policy; a user's own function as it is.

    Options that a `functools.partial` has set stay.
    """
    function: Any = kernel
    options: dict[str, Any] = {}
    while isinstance(function, partial) and not function.args:
        options = function.keywords | options
        function = function.func
    if products == EXACT:
        return kernel
    if function is balanced_polar:
        inner = options.get("polar", newton_schulz)
        return partial(kernel, polar=with_products(inner, products))
    if function is newton_schulz:
        return partial(kernel, **{"compute_dtype": products.compute_dtype} | options)
    ours = lambda kind: any(function is known for known in KERNELS[kind].values())
    mine = [kind for kind in ("qr", "polar", "orthogonal") if ours(kind)]
    if not mine or "dot" in options or "dot" not in signature(function).parameters:
        return kernel
    if mine == ["qr"]:
        return _orthonormal(kernel, products)
    is_polar = mine == ["polar"]
    return partial(kernel, dot=products.bases if is_polar else products.roots)


def _orthonormal(qr: Callable[..., Array], products: Products) -> Callable[..., Array]:
    @wraps(qr.func if isinstance(qr, partial) else qr)
    def run(x: Array, *, previous: Array | None = None) -> Array:
        return qr(x, previous=previous, dot=products.of_columns(x.shape[-1]))

    return run
