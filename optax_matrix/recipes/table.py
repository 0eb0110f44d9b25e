"""Every method of the library, one row each.

The table makes the public names of this package, the list in the README and the
registry of the tests. A new method is a file beside this one, its import and its row
here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax

from optax_matrix.recipes._adamuon import (
    adamuon as adamuon,
    scale_by_adamuon as scale_by_adamuon,
)
from optax_matrix.recipes._alice import (
    alice as alice,
    alice_0 as alice_0,
    scale_by_alice as scale_by_alice,
    scale_by_alice_0 as scale_by_alice_0,
)
from optax_matrix.recipes._apollo import (
    apollo as apollo,
    apollo_mini as apollo_mini,
    apollo_svd as apollo_svd,
    scale_by_apollo as scale_by_apollo,
    scale_by_apollo_mini as scale_by_apollo_mini,
    scale_by_apollo_svd as scale_by_apollo_svd,
)
from optax_matrix.recipes._aro import (
    aro as aro,
    eigen_rownorm as eigen_rownorm,
    eigen_sign as eigen_sign,
    eigen_sinkhorn as eigen_sinkhorn,
    scale_by_aro as scale_by_aro,
    scale_by_eigen_rownorm as scale_by_eigen_rownorm,
    scale_by_eigen_sign as scale_by_eigen_sign,
    scale_by_eigen_sinkhorn as scale_by_eigen_sinkhorn,
)
from optax_matrix.recipes._aurora import (
    aurora as aurora,
    scale_by_aurora as scale_by_aurora,
)
from optax_matrix.recipes._dion import dion as dion, scale_by_dion as scale_by_dion
from optax_matrix.recipes._dion2 import dion2 as dion2, scale_by_dion2 as scale_by_dion2
from optax_matrix.recipes._eigen_adam import (
    eigen_adam as eigen_adam,
    scale_by_eigen_adam as scale_by_eigen_adam,
)
from optax_matrix.recipes._fira import (
    fira as fira,
    fira_plus as fira_plus,
    scale_by_fira as scale_by_fira,
    scale_by_fira_plus as scale_by_fira_plus,
)
from optax_matrix.recipes._galore import (
    galore as galore,
    scale_by_galore as scale_by_galore,
)
from optax_matrix.recipes._kl_shampoo import (
    kl_shampoo as kl_shampoo,
    scale_by_kl_shampoo as scale_by_kl_shampoo,
)
from optax_matrix.recipes._ldadam import (
    ldadam as ldadam,
    scale_by_ldadam as scale_by_ldadam,
)
from optax_matrix.recipes._mars import (
    mars_adamw as mars_adamw,
    scale_by_mars_adamw as scale_by_mars_adamw,
)
from optax_matrix.recipes._mousse import (
    mousse as mousse,
    scale_by_mousse as scale_by_mousse,
)
from optax_matrix.recipes._muon import muon as muon, scale_by_muon as scale_by_muon
from optax_matrix.recipes._muon2 import muon2 as muon2, scale_by_muon2 as scale_by_muon2
from optax_matrix.recipes._muon_plus import (
    muon_plus as muon_plus,
    scale_by_muon_plus as scale_by_muon_plus,
)
from optax_matrix.recipes._muoneq import (
    muoneq as muoneq,
    scale_by_muoneq as scale_by_muoneq,
)
from optax_matrix.recipes._normuon import (
    normuon as normuon,
    scale_by_normuon as scale_by_normuon,
)
from optax_matrix.recipes._poet import oft as oft, poet as poet
from optax_matrix.recipes._racs import racs as racs, scale_by_racs as scale_by_racs
from optax_matrix.recipes._shampoo import (
    scale_by_shampoo as scale_by_shampoo,
    shampoo as shampoo,
)
from optax_matrix.recipes._sinkgd import (
    scale_by_sinkgd as scale_by_sinkgd,
    sinkgd as sinkgd,
)
from optax_matrix.recipes._soap import (
    kl_soap as kl_soap,
    scale_by_kl_soap as scale_by_kl_soap,
    scale_by_soap as scale_by_soap,
    soap as soap,
)
from optax_matrix.recipes._soap_muon import (
    scale_by_soap_muon as scale_by_soap_muon,
    soap_muon as soap_muon,
)
from optax_matrix.recipes._splus import scale_by_splus as scale_by_splus, splus as splus
from optax_matrix.recipes._sumo import scale_by_sumo as scale_by_sumo, sumo as sumo
from optax_matrix.recipes._swan import scale_by_swan as scale_by_swan, swan as swan


class Row(NamedTuple):
    """A method.

    Attributes:
        recipe: Optimizer of a whole tree.
        chain: The chain in words.
        state: Numbers of state for a matrix of ``m x n``, ``m <= n``, apart from a few
            scalars. ``out`` and ``in`` are its sizes, p is the rotated side (the short
            one), r the rank, t the number of trained entries.
        source: Paper and algorithm, in Markdown.
        small: Arguments for matrices of a few rows, such as those of the tests.
    """

    recipe: Callable[..., optax.GradientTransformationExtraArgs]
    chain: str
    state: str
    source: str
    small: Mapping[str, Any] = {}


METHODS: dict[str, list[Row]] = {
    "Orthogonalized momentum": [
        Row(
            muon,
            "momentum → polar factor → scale by shape",
            "mn",
            "[Muon](https://kellerjordan.github.io/posts/muon/)"
            ' (Jordan et al. 2024); Moonlight with `scaling="max"`',
        ),
        Row(
            muoneq,
            "momentum → equilibrate rows and/or columns → polar factor → scale "
            "by shape",
            "mn",
            "[MuonEq](https://arxiv.org/abs/2603.28254), Alg. 1 and 2",
        ),
        Row(
            muon_plus,
            "momentum → polar factor → normalize columns, then rows → scale by shape",
            "mn",
            "[Muon+](https://arxiv.org/abs/2602.21545)",
        ),
        Row(
            muon2,
            "momentum over root of second moment → polar factor → scale by shape",
            "2mn",
            "[Muon²](https://arxiv.org/abs/2604.09967), Alg. 1",
        ),
        Row(
            aurora,
            "momentum → polar factor with rows of nearly equal norms → scale by shape",
            "mn",
            "[Aurora](https://arxiv.org/abs/2606.27715)",
        ),
        Row(
            adamuon,
            "momentum (→ sign) → polar factor → second moment per entry → match RMS",
            "2mn",
            "[AdaMuon](https://arxiv.org/abs/2507.11005), both versions",
        ),
        Row(
            normuon,
            "momentum → polar factor → second moment per row → match RMS",
            "mn + out",
            "[NorMuon](https://arxiv.org/abs/2510.05491)",
        ),
        Row(
            mousse,
            "momentum → whiten both sides → polar factor → unwhiten → graft → "
            "scale by shape",
            "mn + 2m² + 2n²",
            "[Mousse](https://arxiv.org/abs/2603.09697)",
        ),
        Row(
            dion,
            "momentum with error feedback → power step of rank r → scale by shape",
            "mn + in r",
            "[Dion](https://arxiv.org/abs/2504.05295), Alg. 1",
        ),
        Row(
            dion2,
            "momentum with error feedback → polar factor of its largest rows → "
            "scale by shape",
            "mn",
            "[Dion2](https://arxiv.org/abs/2512.16928)",
        ),
        Row(
            swan,
            "gradient → standardize rows → polar factor → scale by shape",
            "0",
            "[SWAN](https://arxiv.org/abs/2412.13148)",
        ),
    ],
    "Scaled rows, columns and entries": [
        Row(
            sinkgd,
            "gradient → Sinkhorn scaling of rows and columns → match RMS",
            "0",
            "[SinkGD](https://arxiv.org/abs/2502.06742) (gradient multi-normalization)",
        ),
        Row(
            racs,
            "gradient → averaged rank-one row and column scales → bound rows → limit "
            "norm growth → scale",
            "m + n",
            "[Structured Fisher](https://arxiv.org/abs/2502.07752) (RACS), Alg. 1",
        ),
        Row(
            mars_adamw,
            "variance-reduced gradient → Adam",
            "3mn",
            "[MARS](https://arxiv.org/abs/2411.10438)",
        ),
    ],
    "Rotated frames and preconditioners": [
        Row(
            aro,
            "momentum → base optimizer in an aligned frame → match RMS",
            'mn + p² (+ mn with `base="adam"`)',
            "[ARO](https://arxiv.org/abs/2602.09006), Eq. 4, Alg. 3",
        ),
        Row(
            eigen_sinkhorn,
            "momentum → Sinkhorn scaling in the momentum's eigenbasis → match RMS",
            "mn + p²",
            "[ARO](https://arxiv.org/abs/2602.09006), Sec. 5.2",
        ),
        Row(
            eigen_sign,
            "momentum → sign in the momentum's eigenbasis → match RMS",
            "mn + p²",
            "[ARO](https://arxiv.org/abs/2602.09006), Sec. 5.2",
        ),
        Row(
            eigen_rownorm,
            "momentum → row norms in the momentum's eigenbasis → match RMS",
            "mn + p²",
            "[ARO](https://arxiv.org/abs/2602.09006), Sec. 5.2",
        ),
        Row(
            eigen_adam,
            "Adam in the eigenbasis of the averaged Gram matrix, one side",
            "2mn + 2p²",
            "[Structured Fisher](https://arxiv.org/abs/2502.07752)"
            ", Alg. 7 (AdaDiag, one-sided SOAP)",
        ),
        Row(
            soap,
            "Adam in the eigenbases of the averaged Gram matrices, both sides",
            "2mn + 2m² + 2n²",
            "[SOAP](https://arxiv.org/abs/2409.11321); Structured Fisher, Alg. 6",
        ),
        Row(
            soap_muon,
            "SOAP on the short side → polar factor → root of the entries → scale by "
            "shape",
            "2mn + 2p²",
            "[SOAP-Muon](https://github.com/nikhilvyas/SOAP_MUON)",
        ),
        Row(
            splus,
            "momentum → sign in SOAP's eigenbases → scale by shape",
            "mn + 2m² + 2n²",
            "[SPlus](https://arxiv.org/abs/2506.07254)",
        ),
        Row(
            shampoo,
            "gradient → inverse fourth roots of the summed Gram matrices, both sides",
            "m² + n²",
            "[Shampoo](https://arxiv.org/abs/1802.09568), Alg. 1",
        ),
        Row(
            kl_shampoo,
            "momentum → inverse roots of Gram matrices, each whitened by the other",
            "mn + 2m² + 2n² + m + n",
            "[KL-Shampoo](https://arxiv.org/abs/2509.03378)",
        ),
        Row(
            kl_soap,
            "SOAP in the eigenbases of KL-Shampoo",
            "2mn + 2m² + 2n² + m + n",
            "[KL-Shampoo](https://arxiv.org/abs/2509.03378) (KL-SOAP)",
            # The first gradient leaves the basis of a null space to rounding.
            {"side": "short"},
        ),
    ],
    "Low rank": [
        Row(
            galore,
            "Adam in the subspace of the gradient's leading singular vectors",
            "mr + 2nr",
            "[GaLore](https://arxiv.org/abs/2403.03507), Alg. 2",
            {"rank": 2},
        ),
        Row(
            alice,
            "Adam in a tracked, switching subspace + equilibrated residual, limited",
            "mr + 2nr + r² + n",
            "[Structured Fisher](https://arxiv.org/abs/2502.07752) (Alice), Alg. 4",
            {"rank": 2, "leading": 1},
        ),
        Row(
            alice_0,
            "Alice without tracking",
            "mr + 2nr + n",
            "[Structured Fisher](https://arxiv.org/abs/2502.07752) (Alice-0), Alg. 4",
            {"rank": 2, "leading": 1},
        ),
        Row(
            sumo,
            "momentum in GaLore's subspace → exact polar factor → scale by shape",
            "mr + nr",
            "[SUMO](https://arxiv.org/abs/2505.24749), Alg. 1",
            {"rank": 2},
        ),
        Row(
            fira,
            "GaLore + the residual, its columns scaled as Adam scaled the "
            "coordinates, limited",
            "mr + 2nr",
            "[Fira](https://arxiv.org/abs/2410.01623), Alg. 1",
            {"rank": 2},
        ),
        Row(
            fira_plus,
            "GaLore + the residual, brought to the norm of the low-rank part",
            "mr + 2nr",
            "[Structured Fisher](https://arxiv.org/abs/2502.07752), Sec. F.7",
            {"rank": 2},
        ),
        Row(
            apollo,
            "gradient → scale each channel by Adam on a random projection → "
            "limit norm growth",
            "2nr",
            "[APOLLO](https://arxiv.org/abs/2412.05270), Alg. 1",
            {"rank": 2},
        ),
        Row(
            apollo_mini,
            "APOLLO of rank one, with one factor for the whole matrix",
            "2n",
            "[APOLLO](https://arxiv.org/abs/2412.05270), Sec. 4.2",
        ),
        Row(
            apollo_svd,
            "APOLLO on GaLore's projection",
            "mr + 2nr",
            "[APOLLO](https://arxiv.org/abs/2412.05270), Alg. 1",
            {"rank": 2},
        ),
        Row(
            ldadam,
            "Adam in a subspace that moves at every step, with error feedback",
            "mn + mr + 2nr (mr + 2nr without the feedback)",
            "[LDAdam](https://arxiv.org/abs/2410.16103)",
            {"rank": 2},
        ),
    ],
    "Orthogonal factors of the weights": [
        Row(
            poet,
            "chain rule to the skew generators → Adam → Cayley transform → W = R W₀ P",
            'mn + 3t + m + n (3t + m + n with `hold="recovered"`)',
            "[POET](https://arxiv.org/abs/2506.08001)",
            {"block": 4},
        ),
        Row(
            oft,
            "POET with P = I, not merged by default: W = R W₀",
            'mn + 3t + in (3t + in with `hold="recovered"`)',
            "[OFT](https://arxiv.org/abs/2306.07280); POET, Fig. 5",
            {"block": 4},
        ),
    ],
}


def names() -> list[str]:
    """The public names that the table makes: recipes and their ``scale_by_`` forms."""
    recipes = [row.recipe.__name__ for rows in METHODS.values() for row in rows]
    forms = [f"scale_by_{name}" for name in recipes]
    return sorted(recipes + [name for name in forms if name in globals()])
