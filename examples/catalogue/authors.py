"""The programs of the catalogue's authors: where they are, and with which settings.

None of their code is here: `examples.catalogue.programs` runs them from checkouts.
"""

import dataclasses
import functools
import importlib
import pathlib
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from examples.catalogue.kernels import _cubics
from examples.catalogue.matrices import _RANK, _roots
from examples.catalogue.method import RATE


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of an author, and how it is compared.

    Attributes:
        method: Name of the method in the catalogue.
        repository: Owner and name at GitHub.
        at: Commit or reference that is compared.
        module: Module that has the optimizer.
        optimizer: Function of the module and a parameter that returns an optimizer.
        below: Folder of the repository from which the module is imported.
        prepare: Function of the module and PyTorch that is called before.
        start: Function of Gaussian weights that returns the first ones.
        seen: Function of the first weights and those of the program that returns what
            is compared with our weights.
        within: Largest difference to be expected in float64.
        function: Function of the module, PyTorch and a dtype that returns a difference,
            for a program that is not an optimizer.
        was_run: Whether the program itself has been run. If not, only a copy has been,
            written from a description of the program.
    """

    method: str
    repository: str
    at: str
    module: str
    optimizer: Callable[[Any, Any], Any] = lambda *_: None
    below: str = "."
    prepare: Callable[[Any, Any], None] = lambda *_: None
    start: Callable[[np.ndarray], np.ndarray] = lambda w: w
    seen: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda _, w: w
    within: float = 1e-10
    function: Callable[[Any, Any, Any], float] | None = None
    was_run: bool = True

    @property
    def checkout(self) -> str:
        """The folder of its checkout."""
        at = self.at.removeprefix("refs/").replace("/", "-")
        return f"{self.repository.partition('/')[2]}-{at[:20]}"

    def clone(self, folder: pathlib.Path) -> str:
        """The line of a shell that makes the checkout."""
        path = folder / self.checkout
        return (
            f"git init -q {path} && git -C {path} fetch -q --depth 1 "
            f"https://github.com/{self.repository} {self.at} && "
            f"git -C {path} checkout -q FETCH_HEAD"
        )


def polar_of(torch: Any) -> Callable[..., Any]:
    """The polar factor in PyTorch, for the place of an approximate one."""

    def polar(x: Any, *_: Any, **__: Any) -> Any:
        u, s, vt = torch.linalg.svd(x, full_matrices=False)
        return (u * (s > 1e-6 * s[..., :1])) @ vt

    return polar


def exact(name: str) -> Callable[[Any, Any], None]:
    """Puts the polar factor in the place of a function of the module."""

    def prepare(module: Any, torch: Any) -> None:
        *path, last = name.split(".")
        setattr(functools.reduce(getattr, path, module), last, polar_of(torch))

    return prepare


def _in_float64(name: str, dtype: str) -> Callable[[Any, Any], None]:
    """Puts float64 in the place of a dtype to which a module casts."""

    def prepare(_: Any, torch: Any) -> None:
        module: Any = importlib.import_module(name)
        module.torch = types.SimpleNamespace(**{**vars(torch), dtype: torch.float64})

    return prepare


# Two programs of Dion orthogonalize in bfloat16.
_wide = _in_float64("dion.muon", "bfloat16")


def _unit_rows(w: np.ndarray) -> np.ndarray:
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def _orthogonal(w: np.ndarray) -> np.ndarray:
    u, _, vt = np.linalg.svd(w, full_matrices=False)
    return max(1.0, (w.shape[0] / w.shape[1]) ** 0.5) * u @ vt


def _on_sphere(w: np.ndarray) -> np.ndarray:
    return (w.shape[0] / w.shape[1]) ** 0.5 * w / np.linalg.norm(w, 2)


def _inverse_roots(module: Any, torch: Any, dtype: Any) -> float:
    """Of the inverse square roots of three Gram matrices: the program has float32."""
    rng, worst = np.random.default_rng(0), 0.0
    for m in (4, 6, 9):
        g = rng.normal(size=(m, 7))
        gram = (g @ g.T + 0.01 * np.eye(m)).astype(np.float32)
        ours = np.asarray(_roots(jnp.asarray(gram, dtype), _cubics(8.5e-4, 10))[1])
        theirs = module.mat_root_inv_via_scaled_cans(torch.tensor(gram)).numpy()
        worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(ours).max()))
    return worst


_NVIDIA = "NVIDIA-NeMo/Emerging-Optimizers"
_MAIN = "fd7729267109a8848709e9406bf19e53e970c3f4"
_DION = "microsoft/dion"

_ALL = (
    Program(
        "lion",
        "google/automl",
        "6a54c8741e7c3265d4547c4f35f47a0391122dc5",
        "lion_pytorch",
        lambda module, w: module.Lion([w], lr=RATE, betas=(0.9, 0.99)),
        below="lion",
    ),
    Program(
        "ademamix",
        "apple/ml-ademamix",
        "c3d73c09f1287e5c33b95189bb0aa7de0a5a7667",
        "ademamix",
        lambda module, w: module.AdEMAMix(
            [w], RATE, (0.9, 0.999, 0.9999), alpha=5.0, alpha_warmup=3, eps=0.0
        ),
        below="pytorch",
        within=1e-9,  # Our schedule of alpha is float32 (1e-7 of a small term).
    ),
    Program(
        "mars_m",
        "AGI-Arena/MARS",
        "4831e28eba863a4e69d7e9474ff8e73bc1b410fe",
        "mars_m",
        lambda module, w: module.MARS_M(lr=RATE, wd=0.0, muon_params=[w]),
        below="MARS_M/optimizers",
        prepare=exact("zeropower_via_newtonschulz5"),
    ),
    Program(
        "conda",
        "jie040109/Conda",
        "449af7136aa72792670b6f8cb39e52135e6cba58",
        "conda_torch.conda",
        lambda module, w: module.Conda(
            [{"params": [w], "update_proj_gap": 1, "scale": 1.0, "proj_type": "left"}],
            RATE,
            (0.9, 0.99),
            eps=0.0,
            no_deprecation_warning=True,
        ),
        prepare=_in_float64("conda_torch.projector", "float"),  # Of decompositions.
    ),
    Program(
        "namo",
        "minxin-zhg/namo",
        "a3f37b01dc8addf1a626be851168a8cacdcd34f9",
        "namo",
        lambda module, w: module.NAMO(
            RATE,
            0.0,
            [w],
            nesterov=False,
            use_exact_svd=True,
            adamnorm_eps=0.0,
            scale_coeff=max(w.shape) ** -0.5,
        ),
        below="src",
        prepare=exact("zeropower_via_svd"),
        within=1e-5,  # Its average of norms is float32.
    ),
    Program(
        "cosmos",
        "lliu606/COSMOS",
        "61de180e1f441ccaaf77e4d29012d5dbc9a1c34a",
        "COSMOS_optim",
        lambda module, w: module.COSMOS(
            [w], RATE, (0.9, 0.96), eps=0.0, rank=_RANK, gamma=0.1
        ),
        prepare=exact("zeropower_via_newtonschulz5"),
    ),
    Program(
        "mano",
        "xie-lab-ml/Mano-Restriking-Manifold-Optimization-for-LLM-Training",
        "b78b95216ff33ede4d3a2a4dfb61177fb69a95c5",
        "mano",
        lambda module, w: module.Mano(RATE, 0.0, mano_params=[w]),
    ),
    Program(
        "muown",
        "kcc-lion/muown",
        "3bd0c054ea97fae7005f76d6bb83dc0e3e99cfd2",
        "muown",
        lambda module, w: module.Muown([w], RATE, nesterov=False, backend="svd"),
        below="optim",
    ),
    Program(
        "muon_sphere",
        _DION,
        "e85d777085ded9e77f6865361790d27e60c8a2ff",
        "dion.muon_sphere",
        lambda module, w: module.MuonSphere(
            [w],
            lr=RATE * (w.shape[1] / w.shape[0]) ** 0.5,
            power_iter_steps=1000,
            newton_schulz_func=polar_of(importlib.import_module("torch")),
        ),
        prepare=_wide,
        start=_on_sphere,
        seen=lambda first, w: w * np.linalg.norm(first, 2) / np.linalg.norm(w, 2),
        within=1e-4,  # Norms and the rate are float32.
    ),
    Program(
        "dion_soft_muon",
        _DION,
        "33777cecb41f8390bc63e1b75e6908addc804da7",
        "dion.muon",
        lambda module, w: module.Muon(
            [w],
            lr=RATE,
            weight_decay=0.0,
            epsilon=0.0,
            adjust_lr=None,
            newton_schulz_func=polar_of(importlib.import_module("torch")),
            softening=0.3,
        ),
        prepare=_wide,
        within=1e-5,  # The rate is float32.
    ),
    Program(
        "oblique",
        _NVIDIA,
        _MAIN,
        "emerging_optimizers.riemannian_optimizers.normalized_optimizer",
        lambda module, w: module.ObliqueSGD([w], lr=RATE, momentum=0.9, dim=1),
        start=_unit_rows,
    ),
    Program(
        "iso",
        _NVIDIA,
        _MAIN,
        "emerging_optimizers.riemannian_optimizers.isospectral",
        lambda module, w: module.Iso([w], lr=RATE, momentum=0.9, retraction="polar"),
        within=1e-4,  # Its factors are float32.
    ),
    Program(
        "scaled_stiefel",
        _NVIDIA,
        "refs/pull/301/head",
        "emerging_optimizers.orthogonalized_optimizers.spel",
        lambda module, w: module.Spel(
            [w], RATE, weight_decay=0.0, scale_mode="unit_rms_to_rms_norm"
        ),
        prepare=exact("muon_utils.newton_schulz"),
        start=_orthogonal,
        was_run=False,
    ),
    Program(
        "cans_shampoo",
        _NVIDIA,
        _MAIN,
        "emerging_optimizers.legacy_soap.matrix_root_inverse_utils",
        within=1e-4,  # It always computes in float32.
        function=_inverse_roots,
    ),
)

PROGRAMS = {program.method: program for program in _ALL}
"""The programs by the name of the method."""
