"""Names of leaves that are no kernels, and of those that are.

A name is that of the leaf or of its module. Names farther up in the path, as in
``embedder/layers/0/mlp/up/kernel``, are not used.
"""

import dataclasses
import functools
import re

EMBEDDINGS = (
    r"(^|[/_])((pos|tok|token)?emb(s|eds?|edder|eddings?)?"
    r"(_tokens|_positions|_tables?|_\d+)?|wte|wpe)(/|$)"
)
HEADS = (
    r"(^|/)((lm_|cls_|mlm_|output_|classifier_|classification_)?heads?(_\d+)?"
    r"|logits?(_?dense)?|classifier|unembed(ding)?|embed_out|score|seq_relationship"
    r"|final_layer/linear|([^/]*_)?head/(out_proj|last_layer|decoder"
    r"|(linear|dense|fc)_?[2-9]))(/[^/]*)?(/\d+)?$"
)
"""Regular expression of the paths of output heads (the last layer)."""

_PATCHES = r"(patch|x|pixel)_?embed[^/]*/(proj(ection)?|conv[^/]*)(/[^/]*)?$"
_VECTORS = (
    r"(^|/)([^/]*_)?bias(_[^/]*|\d*)$|(^|/)(scale|gain|gamma|beta|offset)$"
    r"|(^|/)(layer_?scale(_?\d+)?|gamma_\d|ls\d?|sinks?)$"
)
_NORMS = r"norm[_\d]*(/[^/]*)?$|(^|/)ln(_[^/]*|\d*)(/[^/]*)?$"
_ROUTERS = r"(^|[/_])router([/_][^/]*)?(/[^/]*)?$"
_SPREADS = r"_(auto_scale|rho|logvar|sigma)$"
_STATE_SPACES = r"(^|/)(a_log|log_step|[bc]_(re|im)\w*)$|conv_?1d(/[^/]*)?$"
_TABLES = (
    r"(^|/)([^/]*_)?(tables?|codebooks?|tokens|latents|queries|(query_)?pos"
    r"|slots(_\w+)?|modulations?)$"
    r"|[^/]+_token$|(^|/)time_(decay|first|faaaa|(maa|mix)(_[a-z])?)$"
    r"|(^|/)([^/]*_)?(freqs?|frequenc(y|ies)|decays?|temp(erature)?|shift)$"
    r"|(^|/)(fourier|random_?fourier|rff)[^/]*(/[^/]*)?$"
)


def _compiled(reasons: dict[str, str]) -> tuple[tuple[re.Pattern, str], ...]:
    return tuple((re.compile(p, re.IGNORECASE), why) for p, why in reasons.items())


VOCABULARIES = _compiled(
    {
        EMBEDDINGS: "an embedding by its name",
        _PATCHES: "an embedding of patches by its name",
        HEADS: "an output head by its name",
    }
)
OTHERS = _compiled(
    {
        _VECTORS: "a bias or scale by its name",
        _NORMS: "a norm by its name",
        _ROUTERS: "a router by its name",
        _SPREADS: "the spread of a Bayesian weight by its name",
        _STATE_SPACES: "a state-space or 1-D convolution parameter by its name",
        _TABLES: "a table, token or frequency by its name",
    }
)

_KERNELS = re.compile(
    r"(^|_)(kernel|weights?|w|mat(rix)?|proj|einsum|linear\d*|dense\d*|fc\d*|lora|mlp"
    r"|up|down|gate|in|out|wi|wo|wq|wk|wv|query|key|value|[qkvo]|qkv|kv|conv\w*|expert"
    r"s?|[ab])(_|\d|$)|^\d+$|^w[\[\d]|einsum|kernel|weight|proj",
    re.IGNORECASE,
)
_PARTS = re.compile(r"(re|im|real|imag)$", re.IGNORECASE)  # Of complex parameters.
_INDEX = re.compile(r"(/(\d+|data_array))+$")


@functools.lru_cache(8192)
def without_index(path: str) -> str:
    """The path without what its container adds, as in ``weight/0`` of a named array.

    Penzai names ``mlp/linear.weights/data_array``, Haiku has ``~`` between modules.
    """
    return _INDEX.sub("", path).replace(".", "/").replace("/~/", "/") or path


def own_names(path: str) -> str:
    """The names of a leaf and of its module."""
    return "/".join(without_index(path).rsplit("/", 2)[-2:])


@functools.lru_cache(8192)
def why_other(path: str, reasons: tuple[tuple[re.Pattern, str], ...]) -> str | None:
    """Why a leaf is no kernel by its name, or None."""
    near = own_names(path)
    for pattern, why in reasons:
        # Patches and heads have a module and a submodule before the leaf.
        whole = pattern.pattern in (_PATCHES, HEADS)
        if pattern.search(without_index(path) if whole else near):
            return why
    return None


def is_embedding(path: str) -> bool:
    """Whether a path is that of an embedding."""
    return why_other(path, VOCABULARIES[:1]) is not None


@dataclasses.dataclass(frozen=True)
class Name:
    """What the path of a leaf says of it.

    Attributes:
        path: The path without what its container adds.
        module: The path of its module.
        name: The name of the leaf.
        is_embedding: Whether it is an embedding.
        is_vector: Whether it is a bias or the scale of a norm.
        is_kernel: Whether its name is one of kernels.
    """

    path: str
    module: str
    name: str
    is_embedding: bool
    is_vector: bool
    is_kernel: bool


@functools.lru_cache(8192)
def name_of(path: str) -> Name:
    """What the path of a leaf says of it."""
    plain = without_index(path)
    module, _, name = plain.rpartition("/")
    return Name(
        plain,
        module,
        name,
        is_embedding=is_embedding(path),
        is_vector=why_other(path, OTHERS[:2]) is not None,
        is_kernel=_KERNELS.search(name) is not None and not _PARTS.search(name),
    )
