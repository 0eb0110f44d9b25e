"""Which side of a matrix is on the residual stream, by the usual names of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import ones
from _walks import walk

import optax_matrix as om
from optax_matrix.matrices import default_rule
from optax_matrix.matrices.oriented import oriented
from optax_matrix.matrices.rules import by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.matrices.wider import with_embeddings
from optax_matrix.stacks.layout import make_layout
from optax_matrix.stacks.orientation import oriented_sides
from optax_matrix.stacks.residual_sets import residual_sets

READERS = [
    *("attn/q/kernel", "attn/k", "self_attn/v_proj/weight", "attention/wq/kernel"),
    *("layers/0/attention/query/kernel", "key/kernel", "value", "qkv/kernel"),
    *("mlp/up/kernel", "mlp/gate_proj/kernel", "gate_up_proj/w", "c_attn/kernel"),
    *("feed_forward/w1/kernel", "feed_forward/w3", "wi_0/kernel", "c_fc/kernel"),
    *("fc1/kernel", "experts/up", "mlp/fc_in/kernel", "UP_PROJ/kernel"),
]
WRITERS = [
    *("attn/o/kernel", "self_attn/o_proj/weight", "attention/wo", "attn/out/kernel"),
    *("out_proj/kernel", "mlp/down/kernel", "down_proj/weight", "c_proj/kernel"),
    *("feed_forward/w2/kernel", "fc2/kernel", "experts/down", "mlp/fc_out/kernel"),
]
UNKNOWN = [
    *("kernel", "Dense_0/kernel", "mlp/out/kernel", "q_proj/lora_a", "up/lora_b"),
    *("upsample/kernel", "gateway/kernel", "queue/kernel", "outer/kernel", "wow"),
    *("conv/q/kernel_norms/k2", "kernel/q2", "w1", "w2/kernel"),
]


@walk(
    ("path", "side"),
    [(p, "in") for p in READERS]
    + [(p, "out") for p in WRITERS]
    + [(p, None) for p in UNKNOWN],
)
def test_sides_by_name(path, side):
    numbers, reason = default_rule(path, jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert numbers.residual == side, reason


def test_sides_of_heads_and_stacks():
    shapes = {
        "layers/attention/query/kernel": (3, 8, 2, 4),
        "layers/attention/out/kernel": (3, 2, 4, 8),
        "layers/mlp/up/kernel": (3, 8, 16),
    }
    params = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    views = make_layout(params).views
    sides = {path.split("/")[-2]: view.residual for path, view in views.items()}
    assert sides == {"query": "in", "out": "out", "up": "in"}


def test_convolutions_have_none():
    kernel = jax.ShapeDtypeStruct((3, 3, 8, 16), jnp.float32)
    assert default_rule("conv/up/kernel", kernel)[0].residual is None


def test_sides_in_the_full_model():
    """An embedding (vocabulary, width) writes its width, a head reads it."""
    params = {"embed/embedding": ones(9, 4), "lm_head/kernel": ones(4, 9)}
    layout = make_layout(params, om.matrices.with_embeddings(None))
    sides = {path: view.residual for path, view in layout.views.items()}
    assert sides == {"embed/embedding": "out", "lm_head/kernel": "in"}


def test_names_do_not_override_what_is_given():
    rule = by_path(numbers={"q": MatrixDimensionNumbers(0, 1, residual="out")})
    params = {"q": ones(4, 4), "up": ones(4, 6)}
    views = make_layout(params, rule).views
    assert (views["q"].residual, views["up"].residual) == ("out", "in")


def test_rotations_can_be_shared_without_metadata():
    layer = {"q": (4, 4), "o": (4, 4), "up": (4, 6), "down": (6, 4)}
    shapes = {f"layers/{i}/{n}": s for i in range(2) for n, s in layer.items()}
    params = {path: np.ones(shape, np.float32) for path, shape in shapes.items()}
    _, count = residual_sets(make_layout(params), "chain")
    assert count == 3


def _gradients(shapes):
    rng = np.random.default_rng(0)
    draw = lambda shape: np.float32(rng.standard_normal(shape))
    return {path: draw(shape) for path, shape in shapes.items()}


def _updates(params, **options):
    tx = om.scale_by_aro(base="row_norm", **options)
    grads = jax.tree.map(lambda x: jnp.stack([x, x**3, x**2]), params)
    step = lambda state, g: tx.update(g, state)[::-1]
    run = jax.jit(lambda start, grads: jax.lax.scan(step, start, grads)[1])
    return jax.tree.map(lambda u: u[-1], run(tx.init(params), grads))


@pytest.mark.slow
def test_square_readers_of_an_unannotated_model_rotate_their_input_side():
    """ARO, Fig. 19: the other side is the worse choice. What has no name goes right."""
    params = _gradients({"q": (6, 6), "o": (6, 6), "dense": (6, 6)})
    got = _updates(params)
    right, left = (_updates(params, orientation=side) for side in ("in", "out"))
    for path, want, wrong in (("q", right, left), ("dense", right, left)):
        np.testing.assert_allclose(got[path], want[path], atol=1e-5)
        assert float(jnp.abs(got[path] - wrong[path]).max()) > 0.01
    np.testing.assert_allclose(got["o"], left["o"], atol=1e-5)
    assert float(jnp.abs(got["o"] - right["o"]).max()) > 0.01


# The 130M GPT of the paper in small, as it stores weights: (out, in), and W_tok with
# the vocabulary in front. A transposed weight is rotated from the right: its columns.
D, F, V = 4, 16, 32
PAPER = {
    **{"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D)},
    **{"up": (F, D), "down": (D, F), "tok": (V, D), "lm_head": (V, D)},
}
FIG_19 = {
    "residual": {"o", "down"},
    "except_up": {"up"},
    "except_qkv": {"q", "k", "v"},
    "except_embeddings": {"tok", "lm_head"},
    "prefer_right": {"down"},
}


def _rotated_columns(orientation):
    """The weights that are rotated from the right, in the paper's orientation."""
    # Flax has kernels (in, out), and embeddings as in the paper.
    shapes = {name: shape[::-1] for name, shape in PAPER.items()}
    shapes["embed"] = shapes.pop("tok")[::-1]
    params = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    numbers = oriented(with_embeddings(None), orientation)
    layout = make_layout(params, numbers)
    sides = oriented_sides(layout, orientation)
    found = {m.path: sides[n] for n, g in layout.groups.items() for m in g.members}
    # Our rows of an embedding are its width, the paper's are the vocabulary.
    embedding = found.pop("embed")
    columns = {name for name, side in found.items() if side == "in"}
    return columns | ({"tok"} if embedding == "out" else set())


@pytest.mark.parametrize("orientation", FIG_19)
def test_the_five_rules_of_fig_19(orientation):
    assert _rotated_columns(orientation) == set(PAPER) - FIG_19[orientation]


@pytest.mark.broad
def test_presets_work_for_every_form_of_dimension_numbers():
    """The rotation of `up` has the size of its output then, that of `q` its input's."""
    params = {"up": jnp.ones((4, 6)), "q": jnp.ones((4, 5)), "bias": jnp.ones(6)}
    numbers = {"up": MatrixDimensionNumbers(), "q": MatrixDimensionNumbers()}
    numbers["bias"] = None
    for make in (om.aro, om.eigen_adam):
        for given in (None, numbers, lambda _: numbers, by_path(include="up|q")):
            tx = make(1e-3, orientation="except_up", dimension_numbers=given)
            portable = om.to_portable(tx.init(params), params)
            shapes = {
                key.rpartition("/")[2]: x.shape
                for key, x in portable.items()
                if "rotation" in key
            }
            assert shapes == {"up": (1, 6, 6), "q": (1, 4, 4)}


def test_an_unknown_orientation_is_named():
    with pytest.raises(ValueError, match=r"`orientation` must be one of 'residual'"):
        om.aro(1e-3, orientation="left")
