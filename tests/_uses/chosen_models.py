"""Ten kinds of models that `by_use` was not written for; answers came before runs."""

import jax
import jax.numpy as jnp
from _uses.battery import A, T, case, ln
from jax import lax


def conv(x, w, *, stride=1, groups=1, dilation=1):
    n = w.ndim - 2
    letters = "DHW"[3 - n :]
    layout = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    return lax.conv_general_dilated(
        x,
        w,
        (stride,) * n,
        "SAME",
        rhs_dilation=(dilation,) * n,
        dimension_numbers=layout,
        feature_group_count=groups,
    )


def attend(q, k, v):
    """Attention over the axis before the heads."""
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), v)


@case
def speech_conformer():
    def fn(p, mel):
        x = jax.nn.relu(conv(mel[..., None], p["sub"], stride=2))
        x = x.reshape(*x.shape[:2], -1) @ p["proj"]
        for b in p["blocks"]:
            x = x + 0.5 * jax.nn.silu(ln(x, b["n1"]) @ b["ff1"]) @ b["ff2"]
            y = ln(x, b["n2"])
            q, k, v = (jnp.einsum("btd,dhk->bthk", y, b[n]) for n in ("q", "k", "v"))
            x = x + jnp.einsum("bthk,hkd->btd", attend(q, k, v), b["o"])
            a, gate = jnp.split(ln(x, b["n3"]) @ b["point1"], 2, axis=-1)
            y = conv(a * jax.nn.sigmoid(gate), b["depth"], groups=32)
            x = x + jax.nn.silu(y * b["bn"]) @ b["point2"]
        return jax.nn.log_softmax(x @ p["ctc"])

    block = {
        **{"n1": A(32), "ff1": A(32, 64), "ff2": A(64, 32), "n2": A(32), "n3": A(32)},
        **{"q": A(32, 4, 8), "k": A(32, 4, 8), "v": A(32, 4, 8), "o": A(4, 8, 32)},
        **{"point1": A(32, 64), "depth": A(9, 1, 32), "bn": A(32), "point2": A(32, 32)},
    }
    params = {"sub": A(3, 3, 1, 6), "proj": A(60, 32), "ctc": A(32, 40)}
    params["blocks"] = [block, block]
    answers = {
        **{"sub": "iiio", "proj": "io", "ctc": "-", "ff[12]": "io", "/[qkv]$": "ioo"},
        **{"/o$": "iio", "point1": "io/2", "point2": "io", "depth": "-"},
    }
    return fn, params, (A(2, 16, 20),), answers


@case
def robot_policy():
    """A diffusion policy: FiLM from state and time into temporal convolutions."""

    def fn(p, state, action, t):
        t = t[:, None] * jnp.arange(1.0, 9.0)
        c = jnp.concatenate([jnp.sin(t), jnp.cos(t), state], -1)
        c = jax.nn.mish(c @ p["cond1"]) @ p["cond2"]
        x = conv(action, p["enter"])
        for b in p["blocks"]:
            scale, bias = jnp.split((jax.nn.mish(c) @ b["film"])[:, None], 2, -1)
            y = jax.nn.mish(conv(x, b["a"])) * (1 + scale) + bias
            x = x + conv(jax.nn.mish(y), b["b"])
        return ((conv(x, p["leave"]) - action) ** 2).mean()

    block = {"film": A(24, 48), "a": A(3, 24, 24), "b": A(3, 24, 24)}
    params = {"cond1": A(26, 32), "cond2": A(32, 24), "enter": A(5, 7, 24)}
    params |= {"leave": A(1, 24, 7), "blocks": [block, block]}
    answers = {
        **{"cond": "io", "enter": "iio", "leave": "-", "film": "io/2", "/[ab]$": "iio"},
    }
    return fn, params, (A(2, 10), A(2, 16, 7), A(2)), answers


@case
def recommender():
    """DLRM's tables and interactions, and DCN's low-rank crosses."""

    def fn(p, dense, ids):
        x = jax.nn.relu(jax.nn.relu(dense @ p["bottom1"]) @ p["bottom2"])
        rows = [p["tables"][i][ids[:, i]] for i in range(3)]
        every = jnp.stack([x, *rows], 1)
        pairs = jnp.einsum("bid,bjd->bij", every, every)[:, *jnp.triu_indices(4, 1)]
        z = jnp.concatenate([x, *rows, pairs], -1)
        for c in p["cross"]:
            z = z + z * ((z @ c["v"]) @ c["u"] + c["b"])
        z = jax.nn.relu(z @ p["top1"])
        return jax.nn.sigmoid(z @ p["top2"])

    cross = {"v": A(70, 8), "u": A(8, 70), "b": A(70)}
    params = {"bottom1": A(13, 32), "bottom2": A(32, 16), "cross": [cross, cross]}
    params["tables"] = [A(50, 16), A(60, 16), A(9, 16)]
    params |= {"top1": A(70, 24), "top2": A(24, 2)}
    answers = {"bottom": "io", "tables": "-", "cross": "io", "top1": "io", "top2": "-"}
    return fn, params, (A(4, 13), T(4, 3)), answers


@case
def video_transformer():
    """Tubelets, then attention over space and over time, layers in a scan."""

    def fn(p, clip):
        x = conv(clip, p["tube"], stride=4)
        x = x.reshape(x.shape[0], x.shape[1], -1, 32) + p["space"] + p["time"][:, None]

        def layer(x, b):
            for name in ("s", "t"):
                y = ln(x, b[name + "n"])
                y = y if name == "s" else jnp.swapaxes(y, 1, 2)
                qkv = jnp.einsum("bnmd,dchk->cbnmhk", y, b[name + "qkv"])
                y = jnp.einsum("bnmhk,hkd->bnmd", attend(*qkv), b[name + "o"])
                x = x + (y if name == "s" else jnp.swapaxes(y, 1, 2))
            return x + jax.nn.gelu(ln(x, b["mn"]) @ b["up"]) @ b["down"], None

        x, _ = lax.scan(layer, x, p["layers"])
        return x.mean((1, 2)) @ p["classes"]

    qkv, o = A(3, 32, 3, 4, 8), A(3, 4, 8, 32)
    layers = {"sn": A(3, 32), "tn": A(3, 32), "mn": A(3, 32), "sqkv": qkv, "tqkv": qkv}
    layers |= {"so": o, "to": o, "up": A(3, 32, 64), "down": A(3, 64, 32)}
    params = {"tube": A(2, 4, 4, 3, 32), "space": A(4, 32), "time": A(2, 32)}
    params |= {"layers": layers, "classes": A(32, 11)}
    answers = {
        **{"tube": "iiiio", "space|time": "-", "qkv": "biboo"},
        **{"/[st]o$": "biio", "up|down": "bio", "classes": "-", "n$": "-"},
    }
    return fn, params, (A(2, 8, 8, 8, 3),), answers


@case
def tabular():
    """FT-Transformer: each column has a row of weights of its own."""

    def fn(p, numeric, category):
        x = numeric[:, :, None] * p["weight"] + p["bias"]
        x = jnp.concatenate([x, p["category"][category]], 1)
        x = jnp.concatenate([jnp.tile(p["cls"], (x.shape[0], 1, 1)), x], 1)
        q, k, v = (x @ p[n] for n in ("q", "k", "v"))
        heads = lambda a: a.reshape(*a.shape[:2], 2, 12)
        y = attend(heads(q), heads(k), heads(v)).reshape(x.shape)
        x = x + y @ p["o"]
        a, b = jnp.split(x @ p["glu"], 2, -1)
        x = x + (a * jax.nn.relu(b)) @ p["down"]
        return jax.nn.relu(ln(x[:, 0], p["n"])) @ p["end"]

    params = {"weight": A(6, 24), "bias": A(6, 24), "category": A(19, 24)}
    params |= {"cls": A(1, 1, 24), "n": A(24), "end": A(24, 3)}
    params |= {"glu": A(24, 64), "down": A(32, 24)} | dict.fromkeys("qkvo", A(24, 24))
    answers = {
        **{"weight|bias|category|cls|end": "-", "^[qkvo]$": "io", "glu": "io/2"},
        "down": "io",
    }
    return fn, params, (A(5, 6), T(5, 2)), answers


@case
def audio_codec():
    """Weight-normed convolutions and residual quantization to the nearest codes."""

    def weight(w):
        norm = jnp.sqrt((w["v"] ** 2).sum((0, 1), keepdims=True))
        return w["g"] * w["v"] / norm

    def fn(p, wave):
        x = conv(wave, weight(p["enter"]))
        x = jax.nn.elu(conv(jax.nn.elu(x), weight(p["down"]), stride=2))
        left, found = x, 0.0
        for book in p["books"]:
            far = (left**2).sum(-1, keepdims=True) - 2 * left @ book.T
            index = jnp.argmin(far + (book**2).sum(-1), -1)
            code = book[index]
            found, left = found + left + lax.stop_gradient(code - left), left - code
        x = lax.conv_transpose(found, p["up"], (2,), "SAME")
        return conv(jax.nn.elu(x), p["leave"])

    params = {
        "enter": {"v": A(7, 1, 8), "g": A(1, 1, 8)},
        "down": {"v": A(4, 8, 16), "g": A(1, 1, 16)},
        "books": [A(32, 16), A(32, 16)],
        **{"up": A(4, 16, 8), "leave": A(7, 8, 1)},
    }
    answers = {
        **{"enter/v|down/v|^up": "iio", "/g": "-", "books": "-", "leave": "-"},
    }
    return fn, params, (A(2, 64, 1),), answers


@case
def point_clouds():
    """PointNet's predicted alignment, then convolutions on edges to neighbours."""

    def fn(p, points):
        x = jax.nn.relu(points @ p["t1"]).max(1) @ p["t2"]
        points = points @ x.reshape(-1, 3, 3)
        far = ((points[:, :, None] - points[:, None]) ** 2).sum(-1)
        _, near = lax.top_k(-far, 4)
        around = jax.vmap(lambda x, i: x[i])(points, near)
        here = jnp.broadcast_to(points[:, :, None], around.shape)
        edges = jnp.concatenate([here, around - here], -1)
        x = jax.nn.relu(jax.nn.relu(edges @ p["e1"]) @ p["e2"]).max(2)
        return jax.nn.relu(x.max(1) @ p["c1"]) @ p["c2"]

    params = {"t1": A(3, 16), "t2": A(16, 9), "e1": A(6, 24), "e2": A(24, 32)}
    params |= {"c1": A(32, 20), "c2": A(20, 5)}
    return fn, params, (A(2, 12, 3),), {"t[12]|e[12]|c1": "io", "c2": "-"}


@case
def time_series():
    """Patches per channel, a mixer over time and features, and a trend by itself."""

    def fn(p, series):
        trend = jnp.cumsum(series, 1) / jnp.arange(1, 33)[:, None]
        x = (series - trend).swapaxes(1, 2).reshape(3, 7, 4, 8) @ p["patch"]
        for b in p["mixers"]:
            y = jnp.einsum("bctd,ts->bcsd", ln(x, b["n"]), b["time"])
            x = x + jax.nn.relu(y)
            x = x + jax.nn.relu(x @ b["up"]) @ b["down"]
        out = x.reshape(3, 7, -1) @ p["forecast"]
        return out + jnp.einsum("btc,ts->bcs", trend, p["trend"])

    mixer = {"n": A(16), "time": A(4, 4), "up": A(16, 48), "down": A(48, 16)}
    params = {"patch": A(8, 16), "mixers": [mixer, mixer]}
    params |= {"forecast": A(64, 12), "trend": A(32, 12)}
    answers = {"patch|time|up|down": "io", "forecast|trend": "-"}
    return fn, params, (A(3, 32, 7),), answers


@case
def segmentation():
    """A U-Net with squeeze-and-excitation, and parallel dilated branches."""

    def fn(p, image):
        a = jax.nn.relu(conv(image, p["a"]))
        b = jax.nn.relu(conv(a, p["b"], stride=2))
        s = jax.nn.sigmoid(jax.nn.relu(b.mean((1, 2)) @ p["se1"]) @ p["se2"])
        b = b * s[:, None, None]
        rates = [
            conv(b, w, dilation=r) for w, r in zip(p["aspp"], (1, 2, 4), strict=True)
        ]
        b = jax.nn.relu(jnp.concatenate(rates, -1))
        up = lax.conv_transpose(b, p["up"], (2, 2), "SAME")
        x = jax.nn.relu(conv(jnp.concatenate([a, up], -1), p["join"]))
        return conv(x, p["mask"])

    params = {"a": A(3, 3, 3, 8), "b": A(3, 3, 8, 16), "se1": A(16, 4), "se2": A(4, 16)}
    params |= {"aspp": [A(3, 3, 16, 12)] * 3, "up": A(2, 2, 36, 8)}
    params |= {"join": A(3, 3, 16, 16), "mask": A(1, 1, 16, 6)}
    answers = {"^[ab]$|aspp|up|join": "iiio", "se": "io", "mask": "-"}
    return fn, params, (A(2, 16, 16, 3),), answers


@case
def retrieval():
    """Two towers that meet in a contrastive loss with a learned temperature."""

    def tower(p, tokens):
        x = p["words"][tokens].mean(1)
        for layer in p["layers"]:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        x = x @ p["project"]
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def fn(p, query, passage):
        scores = tower(p["query"], query) @ tower(p["passage"], passage).T
        scores = scores * jnp.exp(p["temperature"])
        return -jnp.diag(jax.nn.log_softmax(scores)).mean()

    layer = {"up": A(24, 48), "down": A(48, 24)}
    one = {"words": A(70, 24), "layers": [layer, layer], "project": A(24, 16)}
    params = {"query": one, "passage": one, "temperature": A()}
    # At the first run the answer for `project` was "-", and "io" was read. The rows of
    # a tower's last matrix are no classes, so either will do.
    answers = {"words": "-", "up|down": "io", "project": "io|-"}
    return fn, params, (T(4, 6), T(4, 9)), answers
