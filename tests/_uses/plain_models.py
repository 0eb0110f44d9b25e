"""Models in plain JAX."""

import jax
import jax.numpy as jnp
from _uses.battery import A, T, case, ln, rms
from jax import lax


@case
def scanned_llama_experts():
    L, E, D, F, H, K = 3, 4, 32, 48, 4, 8
    p = {
        "embedder": A(90, D),
        "layers": {
            "wq": A(L, D, H, K),
            "wkv": A(L, 2, D, 2, K),
            "wo": A(L, H, K, D),
            "n1": A(L, D),
            "n2": A(L, D),
            "gate": A(L, D, E),
            "w1": A(L, E, D, 2 * F),
            "w2": A(L, E, F, D),
        },
        "norm": A(D),
        "unembed": A(D, 90),
    }

    def f(p, t):
        x = p["embedder"][t]

        def body(x, w):
            y = rms(x, w["n1"])
            q = jnp.einsum("btd,dhk->bthk", y, w["wq"])
            k, v = jnp.einsum("btd,cdhk->cbthk", y, w["wkv"])
            s, c = jnp.split(q, 2, -1)
            q = jnp.concatenate([s * 0.5 - c, c * 0.5 + s], -1)
            x = x + jnp.einsum(
                "bthk,hkd->btd",
                jax.nn.dot_product_attention(q, k, v, is_causal=True),
                w["wo"],
            )
            y = rms(x, w["n2"])
            y = y.reshape(-1, D)
            pr = jax.nn.softmax(y @ w["gate"])
            g, idx = lax.top_k(pr, 2)
            disp = jnp.einsum("ske->se", jax.nn.one_hot(idx, E) * g[..., None])
            m = disp > 0
            z = jnp.einsum("gd,ge->egd", y, m.astype(y.dtype))
            h = jnp.einsum("egd,edf->egf", z, w["w1"])
            a, u = jnp.split(h, 2, -1)
            z = jnp.einsum("egf,efd->egd", jax.nn.silu(a) * u, w["w2"])
            return x + jnp.einsum("egd,ge->gd", z, disp).reshape(x.shape), None

        x, _ = lax.scan(jax.checkpoint(body), x, p["layers"])
        return rms(x, p["norm"]) @ p["unembed"]

    return (
        f,
        p,
        (T(2, 10),),
        {
            "embedder|n1|n2|unembed": "-",
            "wq": "bioo",
            "wkv": "bbioo",
            "wo": "biio",
            "gate": "-",
            "w1": "bbio/2",
            "w2": "bbio",
        },
    )


@case
def mla():
    D, H, R, N, P, V = 32, 4, 12, 8, 4, 8
    p = {
        "emb": A(70, D),
        "q_a": A(D, 16),
        "q_norm": A(16),
        "q_b": A(16, H * (N + P)),
        "kv_a": A(D, R + P),
        "kv_norm": A(R),
        "kv_b": A(R, H * (N + V)),
        "o": A(H * V, D),
        "fin": A(D, 70),
    }

    def f(p, t):
        x = p["emb"][t]
        B, n, _ = x.shape
        q = (rms(x @ p["q_a"], p["q_norm"]) @ p["q_b"]).reshape(B, n, H, N + P)
        qn, qp = q[..., :N], q[..., N:]
        c = x @ p["kv_a"]
        c, kp = c[..., :R], c[..., R:]
        kv = (rms(c, p["kv_norm"]) @ p["kv_b"]).reshape(B, n, H, N + V)
        k, v = kv[..., :N], kv[..., N:]
        s = jnp.einsum("bthk,bshk->bhts", qn, k) + jnp.einsum("bthk,bsk->bhts", qp, kp)
        y = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(s), v)
        return (x + y.reshape(B, n, H * V) @ p["o"]) @ p["fin"]

    return (
        f,
        p,
        (T(2, 10),),
        {"emb|fin": "-", "q_a|q_b|kv_b|^o$": "io", "kv_a": "io/(12, 4)"},
    )


@case
def fno():
    p = {
        "lift": {"w": A(3, 16)},
        "spec0": {"weights": A(16, 16, 5, 5, dtype=jnp.complex64)},
        "spec1": {"re": A(16, 16, 5, 5), "im": A(16, 16, 5, 5)},
        "spec2": {"w": A(16, 16, 5, 5, 2)},
        "skip": {"w": A(16, 16)},
        "out": {"w": A(16, 1)},
        "proj": {"w": A(16, 24)},
        "out2": {"w": A(24, 2)},
    }

    def f(p, x):
        x = x @ p["lift"]["w"]
        ws = [
            p["spec0"]["weights"],
            p["spec1"]["re"] + 1j * p["spec1"]["im"],
            p["spec2"]["w"][..., 0] + 1j * p["spec2"]["w"][..., 1],
        ]
        for w in ws:
            z = jnp.fft.rfft2(x, axes=(1, 2))[:, :5, :5]
            z = jnp.einsum("bxyi,ioxy->bxyo", z, w)
            x = jax.nn.gelu(
                jnp.fft.irfft2(
                    jnp.pad(z, ((0, 0), (0, 5), (0, 1), (0, 0))),
                    s=x.shape[1:3],
                    axes=(1, 2),
                )
                + x @ p["skip"]["w"]
            )
        return jax.nn.gelu(x @ p["proj"]["w"]) @ p["out2"]["w"], x @ p["out"]["w"]

    return (
        f,
        p,
        (A(2, 10, 10, 3),),
        {
            "lift": "io|-",
            "spec0": "iobb",
            "spec1": "iobb",
            "spec2": "iobbb",
            "skip": "io",
            "^out": "-",
            "proj": "io",
        },
    )


@case
def kan():
    p = [
        {"base": A(o, i), "spline": A(o, i, 6), "scaler": A(o, i)}
        for i, o in ((5, 12), (12, 12), (12, 3))
    ]

    def f(p, x):
        for l in p:
            b = jnp.exp(-((x[..., None] - jnp.linspace(-1, 1, 6)) ** 2))
            x = jax.nn.silu(x) @ l["base"].T + jnp.einsum(
                "big,oig->bo", b, l["spline"] * l["scaler"][..., None]
            )
        return x

    return (
        f,
        p,
        (A(4, 5),),
        {
            "^0/base": "oi|-",
            "^0/spline": "oii|-",
            "^1/base": "oi",
            "^1/spline": "oii",
            "^2/": "-",
            "scaler": "-|oi",
        },
    )


@case
def e3nn_like():
    p = {
        "emb": A(10, 8),
        "w_uvw": A(8, 6, 8),
        "w_elem": A(10, 4, 8),
        "lin0": A(8, 8),
        "lin1": A(8, 6),
        "radial0": A(5, 16),
        "radial1": A(16, 8),
        "out": A(8, 1),
        "out2": A(8, 3),
    }

    def f(p, z, y, r):
        x = p["emb"][z]
        x = jnp.einsum("zu,zv,uvw->zw", x, y, p["w_uvw"])
        x = x @ p["lin0"] * (jax.nn.silu(r @ p["radial0"]) @ p["radial1"])
        B = jnp.stack([x, x**2, x**3, x**4], 1)
        x = jnp.einsum("zpc,zpc->zc", p["w_elem"][z], B)
        v = x @ p["lin1"]
        x = x + jnp.einsum("zv,uvw,zu->zw", v, p["w_uvw"], x)
        return x @ p["out"], x @ p["out2"]

    return (
        f,
        p,
        (T(7), A(7, 6), A(7, 5)),
        {
            "emb": "-",
            "w_uvw": "iio|-",
            "w_elem": "-",
            "lin": "io",
            "radial0": "io|-",
            "radial1": "io",
            "out": "-",
        },
    )


@case
def mamba():
    D, I, N, R, K = 16, 32, 4, 6, 4
    p = {
        "emb": A(50, D),
        "in_proj": A(D, 2 * I),
        "conv1d": {"kernel": A(K, 1, I), "bias": A(I)},
        "x_proj": A(I, R + 2 * N),
        "dt_proj": A(R, I),
        "A_log": A(I, N),
        "D": A(I),
        "out_proj": A(I, D),
        "tap": A(I, K),
    }

    def f(p, t):
        x = p["emb"][t]
        u, z = jnp.split(x @ p["in_proj"], 2, -1)
        u = jax.nn.silu(
            lax.conv_general_dilated(
                u,
                p["conv1d"]["kernel"],
                (1,),
                [(K - 1, 0)],
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=I,
            )
            + p["conv1d"]["bias"]
        )
        u = sum(
            jnp.pad(u, ((0, 0), (j, 0), (0, 0)))[:, : u.shape[1]] * p["tap"][:, j]
            for j in range(K)
        )
        dt, Bm, C = jnp.split(u @ p["x_proj"], [R, R + N], -1)
        dt = jax.nn.softplus(dt @ p["dt_proj"])
        a = jnp.exp(-dt[..., None] * jnp.exp(p["A_log"]))

        def step(h, s):
            h = s[0] * h + s[1]
            return h, jnp.einsum("bdn,bn->bd", h, s[2])

        tr = lambda v: jnp.moveaxis(v, 1, 0)
        _, y = lax.scan(
            step,
            jnp.zeros((x.shape[0], I, N)),
            (tr(a), tr(dt[..., None] * Bm[:, :, None] * u[..., None]), tr(C)),
        )
        return (x + (tr(y) + u * p["D"]) * jax.nn.silu(z) @ p["out_proj"]) @ p["emb"].T

    return (
        f,
        p,
        (T(2, 9),),
        {
            "emb": "-",
            "in_proj": "io/2",
            "conv1d/k|tap|A_log": "-",
            "x_proj": "io/(6, 4, 4)",
            "dt_proj|out_proj": "io",
        },
    )


@case
def rwkv7():
    D, H = 32, 4
    p = {
        "emb/weight".replace("/", "_"): A(60, D),
        "att": {
            **{n: A(D) for n in ("x_r", "x_k")},
            "time_mix": A(2, 1, D),
            "w1": A(D, 8),
            "w2": A(8, D),
            "r_k": A(H, D // H),
            **{
                n: {"weight": A(D, D)} for n in ("receptance", "key", "value", "output")
            },
        },
        "ffn": {"key": {"weight": A(4 * D, D)}, "value": {"weight": A(D, 4 * D)}},
        "head": {"weight": A(60, D)},
        "ln": A(D),
    }

    def f(p, t):
        x = p["emb_weight"][t]
        a = p["att"]
        sh = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        xr, xk = (x + (sh - x) * a["time_mix"][j] for j in range(2))
        hd = lambda v: v.reshape(*v.shape[:-1], H, D // H)
        w = jnp.exp(-jnp.exp(jnp.tanh(xr @ a["w1"]) @ a["w2"]))
        r, k, v = (
            hd(y @ a[n]["weight"].T)
            for y, n in ((xr, "receptance"), (xk, "key"), (x, "value"))
        )

        def step(s, e):
            r, w, k, v = e
            s = s * w[..., None] + k[..., None] * v[..., None, :]
            return s, jnp.einsum("bhk,bhkv->bhv", r, s)

        tr = lambda v: jnp.moveaxis(v, 1, 0)
        _, y = lax.scan(
            step,
            jnp.zeros((x.shape[0], H, D // H, D // H)),
            (tr(r), tr(hd(w)), tr(k), tr(v)),
        )
        y = tr(y) + (r * k * a["r_k"]).sum(-1, keepdims=True) * v
        x = x + y.reshape(x.shape) @ a["output"]["weight"].T
        x = (
            x
            + jnp.square(jax.nn.relu(x @ p["ffn"]["key"]["weight"].T))
            @ p["ffn"]["value"]["weight"].T
        )
        return ln(x, p["ln"]) @ p["head"]["weight"].T

    return (
        f,
        p,
        (T(2, 7),),
        {"emb|head": "-", "time_mix|r_k": "-", "att/w[12]": "io", "weight": "oi"},
    )


@case
def xlstm_headwise():
    p = {
        "emb": A(50, 32),
        **{n: {"kernel": A(8, 4, 4)} for n in ("q_proj", "k_proj", "v_proj")},
        "big": {"kernel": A(2, 16, 16)},
        "igate": {"kernel": A(32, 4), "bias": A(4)},
        "down": {"kernel": A(32, 32)},
        "fin": {"kernel": A(32, 50)},
    }

    def f(p, t):
        x = p["emb"][t]
        hw = lambda x, w: jnp.einsum(
            "...hd,hod->...ho", x.reshape(*x.shape[:-1], w.shape[0], -1), w
        ).reshape(x.shape)
        q, k, v = (hw(x, p[n]["kernel"]) for n in ("q_proj", "k_proj", "v_proj"))
        h4 = lambda a: a.reshape(*a.shape[:-1], 4, 8)
        g = jax.nn.sigmoid(x @ p["igate"]["kernel"] + p["igate"]["bias"])
        s = (
            jnp.einsum("bthd,bshd->bhts", h4(q), h4(k))
            * jnp.moveaxis(g, -1, 1)[:, :, None]
        )
        y = jnp.einsum("bhts,bshd->bthd", s, h4(v)).reshape(x.shape)
        x = x + hw(y, p["big"]["kernel"])
        return (x + y @ p["down"]["kernel"]) @ p["fin"]["kernel"]

    return (
        f,
        p,
        (T(2, 7),),
        {"emb|fin": "-", "[qkv]_proj": "boi", "big": "boi", "igate|down": "io"},
    )


@case
def dit():
    D = 32
    p = {
        "x_embed": A(4, 4, 3, D),
        "pos": A(16, D),
        "t1": A(16, D),
        "t2": A(D, D),
        "y": A(11, D),
        "blocks": {
            "ada": A(2, D, 6 * D),
            "qkv": A(2, D, 3 * D),
            "proj": A(2, D, D),
            "fc1": {"g": A(2, 4 * D), "v": A(2, D, 4 * D)},
            "fc2": A(2, 4 * D, D),
        },
        "ada": A(D, 2 * D),
        "final": A(D, 48),
    }

    def f(p, x, t, y):
        x = (
            lax.conv_general_dilated(
                x,
                p["x_embed"],
                (4, 4),
                "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            ).reshape(x.shape[0], -1, D)
            + p["pos"]
        )
        e = jnp.exp(jnp.arange(8.0))
        c = t[:, None] * e
        c = jnp.concatenate([jnp.sin(c), jnp.cos(c)], -1)
        c = jax.nn.silu(c @ p["t1"]) @ p["t2"] + p["y"][y]
        mod = lambda x, s, b: ln(x, 1.0) * (1 + s[:, None]) + b[:, None]

        def body(x, w):
            s1, b1, g1, s2, b2, g2 = jnp.split(jax.nn.silu(c) @ w["ada"], 6, -1)
            q, k, v = jnp.moveaxis(
                (mod(x, s1, b1) @ w["qkv"]).reshape(*x.shape[:-1], 3, 4, 8), 2, 0
            )
            x = x + g1[:, None] * (
                jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ w["proj"]
            )
            v = w["fc1"]["v"]
            fc1 = v * (w["fc1"]["g"] / jnp.linalg.norm(v, axis=0))
            return x + g2[:, None] * (
                jax.nn.gelu(mod(x, s2, b2) @ fc1) @ w["fc2"]
            ), None

        x, _ = lax.scan(body, x, p["blocks"])
        s, b = jnp.split(c @ p["ada"], 2, -1)
        return mod(x, s, b) @ p["final"]

    return (
        f,
        p,
        (A(2, 16, 16, 3), A(2), T(2)),
        {
            "x_embed": "iiio|-",
            "pos|^y$": "-",
            "t1": "io|-",
            "t2": "io",
            "blocks/ada": "bio/6",
            "qkv": "bio/3",
            "proj": "bio",
            "fc1/g": "-",
            "fc1/v": "bio",
            "fc2": "bio",
            "^ada": "io/2",
            "final": "-",
        },
    )


@case
def alphafold():
    C, H, K = 16, 2, 8
    p = {
        "relpos": A(9, C),
        "msa": A(11, C),
        "tri": {"gate": A(C, C), "proj": A(C, 2 * C), "out": A(C, C), "n": A(C)},
        "att": {
            "q": A(C, H, K),
            "k": A(C, H, K),
            "v": A(C, H, K),
            "bias": A(C, H),
            "g": A(C, H, K),
            "g_b": A(H, K),
            "o": A(H, K, C),
        },
        "outer": {"l": A(C, 6), "r": A(C, 6), "o": A(6, 6, C)},
        "disto": A(C, 12),
    }

    def f(p, a):
        z = p["relpos"][jnp.clip(jnp.arange(7)[:, None] - jnp.arange(7) + 4, 0, 8)]
        m = jax.nn.one_hot(a, 11) @ p["msa"]
        o = p["outer"]
        z = (
            z
            + jnp.einsum(
                "iab,abc->ic", jnp.einsum("ia,ib->iab", m @ o["l"], m @ o["r"]), o["o"]
            )[:, None]
        )
        t = p["tri"]
        y = ln(z, t["n"])
        l, r = jnp.split(y @ t["proj"], 2, -1)
        z = z + jax.nn.sigmoid(y @ t["gate"]) * (
            jnp.einsum("ikc,jkc->ijc", l, r) @ t["out"]
        )
        a = p["att"]
        q, k, v = (jnp.einsum("ijc,chk->ijhk", z, a[n]) for n in "qkv")
        s = (
            jnp.einsum("ijhk,ilhk->ihjl", q, k)
            + jnp.moveaxis(z @ a["bias"], -1, 0)[None]
        )
        y = jnp.einsum("ihjl,ilhk->ijhk", jax.nn.softmax(s), v) * jax.nn.sigmoid(
            jnp.einsum("ijc,chk->ijhk", z, a["g"]) + a["g_b"]
        )
        z = z + jnp.einsum("ijhk,hkc->ijc", y, a["o"])
        return z @ p["disto"]

    return (
        f,
        p,
        (T(7),),
        {
            "relpos": "-",
            "msa": "-",
            "tri/(gate|out)": "io",
            "tri/proj": "io/2",
            "att/[qkvg]$": "ioo",
            "att/bias": "io",
            "g_b": "-",
            "att/o": "iio",
            "outer/[lr]": "io",
            "outer/o": "iio",
            "disto": "-",
        },
    )


@case
def gnn_gat():
    p = {
        "w0": A(6, 4, 8),
        "att0": A(4, 8),
        "att1": A(4, 8),
        "w1": {"kernel": A(32, 32), "self": A(32, 32)},
        "rel": A(5, 32, 32),
        "bases": A(3, 32, 32),
        "coef": A(5, 3),
        "out": A(32, 4),
    }

    def f(p, x, s, r, e):
        h = jnp.einsum("ni,ihd->nhd", x, p["w0"])
        a = jax.nn.leaky_relu((h * p["att0"]).sum(-1)[s] + (h * p["att1"]).sum(-1)[r])
        a = jnp.exp(a)
        a = a / jax.ops.segment_sum(a, r, 9)[r]
        h = jax.ops.segment_sum(a[..., None] * h[s], r, 9).reshape(9, 32)
        h = jax.nn.relu(
            jax.ops.segment_sum(h[s] @ p["w1"]["kernel"], r, 9) + h @ p["w1"]["self"]
        )
        h = jax.nn.relu(
            jax.ops.segment_sum(jnp.einsum("ed,edf->ef", h[s], p["rel"][e]), r, 9)
        )
        w = jnp.einsum("rb,bio->rio", p["coef"], p["bases"])
        hr = jnp.einsum("nd,rdf->rnf", h, w)
        h = jax.nn.relu(hr.sum(0))
        return h @ p["out"]

    return (
        f,
        p,
        (A(9, 6), T(20), T(20), T(20)),
        {
            "w0": "ioo|-",
            "att": "-",
            "w1": "io",
            "rel": "bio",
            "bases": "bio",
            "coef": "-|oi|io",
            "out": "-",
        },
    )


@case
def hypernet():
    p = {
        "z": {"a": A(4, 16), "b": A(16, 16)},
        "gen_w": A(16, 8, 12),
        "gen_b": A(16, 12),
        "gen2": A(16, 12 * 5),
        "film": A(16, 24),
    }

    def f(p, x, c):
        z = jnp.tanh(jnp.tanh(c @ p["z"]["a"]) @ p["z"]["b"])
        w = jnp.einsum("bz,zio->bio", z, p["gen_w"])
        h = jax.nn.relu(jnp.einsum("bi,bio->bo", x, w) + z @ p["gen_b"])
        s, t = jnp.split(z @ p["film"], 2, -1)
        h = h * s + t
        return jnp.einsum("bi,bio->bo", h, (z @ p["gen2"]).reshape(-1, 12, 5))

    return (
        f,
        p,
        (A(3, 8), A(3, 4)),
        {
            "z/a": "io|-",
            "z/b": "io",
            "gen_w": "ioo",
            "gen_b": "io",
            "gen2": "-|io",
            "film": "io/2",
        },
    )


@case
def torch_layout():
    p = {
        "conv1": {"weight": A(16, 3, 3, 3)},
        "bn1": {"weight": A(16), "bias": A(16)},
        "conv2": {"weight": A(32, 16, 3, 3)},
        "dw": {"weight": A(32, 1, 3, 3)},
        "pw": {"weight": A(24, 32, 1, 1)},
        "up": {"weight": A(24, 20, 2, 2)},
        "c1d": {"weight": A(20, 20, 5)},
        "fc1": {"weight": A(40, 20)},
        "fc": {"weight": A(10, 40)},
    }

    def f(p, x):
        c = lambda x, w, g=1: lax.conv_general_dilated(
            x, w, (1,) * (w.ndim - 2), "SAME", feature_group_count=g
        )
        x = (
            c(x, p["conv1"]["weight"]) * p["bn1"]["weight"][:, None, None]
            + p["bn1"]["bias"][:, None, None]
        )
        x = jax.nn.relu(c(jax.nn.relu(x), p["conv2"]["weight"]))
        x = jax.nn.relu(c(c(x, p["dw"]["weight"], 32), p["pw"]["weight"]))
        x = lax.conv_transpose(
            x,
            p["up"]["weight"],
            (2, 2),
            "SAME",
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            transpose_kernel=True,
        )
        x = jax.nn.relu(c(x.mean(-1), p["c1d"]["weight"])).mean(-1)
        return jax.nn.relu(x @ p["fc1"]["weight"].T) @ p["fc"]["weight"].T

    return (
        f,
        p,
        (A(2, 3, 8, 8),),
        {
            "conv1": "oiii|-",
            "conv2|pw": "oiii",
            "dw": "-",
            "up": "ioii",
            "c1d": "oii",
            "fc1": "oi",
            "fc/": "-",
        },
    )


@case
def detr_queries():
    p = {
        "patch": A(48, 32),
        "query_pos": A(5, 32),
        "sa": {n: A(32, 32) for n in "qkvo"},
        "ca": {n: A(32, 32) for n in "qkvo"},
        "cls": A(32, 9),
        "box1": A(32, 32),
        "box2": A(32, 4),
    }

    def f(p, x):
        m = x @ p["patch"]
        tgt = jnp.zeros((x.shape[0], 5, 32))
        qp = jnp.broadcast_to(p["query_pos"], tgt.shape)

        def att(w, a, b, v):
            h = lambda y: y.reshape(*y.shape[:-1], 4, 8)
            return (
                jax.nn.dot_product_attention(
                    h(a @ w["q"]), h(b @ w["k"]), h(v @ w["v"])
                ).reshape(a.shape)
                @ w["o"]
            )

        tgt = tgt + att(p["sa"], tgt + qp, tgt + qp, tgt)
        tgt = ln(tgt, 1.0)
        tgt = tgt + att(p["ca"], tgt + qp, m, m)
        return tgt @ p["cls"], jax.nn.relu(tgt @ p["box1"]) @ p["box2"]

    return (
        f,
        p,
        (A(2, 16, 48),),
        {
            "patch": "io|-",
            "query_pos": "-",
            "sa|ca": "io",
            "cls|box2": "-",
            "box1": "io",
        },
    )


@case
def lora_and_factors():
    p = {
        "emb": A(50, 24),
        "w0": A(24, 24),
        "a": A(24, 4),
        "b": A(4, 24),
        "u": A(24, 6),
        "s": A(6),
        "v": A(6, 24),
        "q": A(24, 24),
        "scale": A(1, 24),
        "base": A(24, 48),
        "la": A(24, 4),
        "lb": A(4, 48),
        "dn": A(48, 24),
        "out": A(24, 50),
    }

    def f(p, t):
        x = p["emb"][t]
        x = x + jax.nn.relu(x @ (p["w0"] + 2.0 * p["a"] @ p["b"]))
        x = x + jax.nn.relu((x @ p["u"] * p["s"]) @ p["v"])
        s = jnp.max(jnp.abs(p["q"]), 0, keepdims=True) / 127
        qd = lax.stop_gradient(jnp.round(p["q"] / s) * s - p["q"]) + p["q"]
        x = x + jax.nn.relu(
            (x * p["scale"]) @ qd.astype(jnp.bfloat16).astype(jnp.float32)
        )
        h = jax.nn.relu(x @ p["base"] + x @ p["la"] @ p["lb"])
        return (x + h @ p["dn"]) @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out": "-", "scale": "-", "w0|^a$|^b$|^u$|^v$|^q$|base|la|lb|dn": "io"},
    )


@case
def relative_positions():
    p = {
        "emb": A(40, 32),
        "t5": A(8, 4),
        "shaw_k": A(15, 8),
        "skew": A(8, 8),
        "wq": A(32, 4, 8),
        "wk": A(32, 4, 8),
        "wv": A(32, 32),
        "wo": A(32, 32),
        "wr": A(32, 32),
        "u": A(4, 8),
        "out": A(32, 40),
    }

    def f(p, t):
        x = p["emb"][t]
        n = 8
        rel = jnp.arange(n)[:, None] - jnp.arange(n) + 7
        q, k = (jnp.einsum("btd,dhk->bthk", x, p[w]) for w in ("wq", "wk"))
        v = (x @ p["wv"]).reshape(k.shape)
        s = (
            jnp.einsum("bthk,bshk->bhts", q + p["u"], k)
            + jnp.moveaxis(p["t5"][rel // 2], -1, 0)
            + jnp.einsum("bthk,tsk->bhts", q, p["shaw_k"][rel])
            + jnp.einsum("bthk,sk->bhts", q, p["skew"])
        )
        r = jnp.sin(jnp.arange(8.0)[:, None] * jnp.linspace(0.1, 1, 32))
        s = s + jnp.einsum("bthk,shk->bhts", q, (r @ p["wr"]).reshape(8, 4, 8))
        return (
            x
            + jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(s), v).reshape(x.shape)
            @ p["wo"]
        ) @ p["out"]

    return (
        f,
        p,
        (T(2, 8),),
        {"emb|out|t5|shaw_k|skew|^u$": "-", "wq|wk": "ioo", "wv|wo": "io", "wr": "io"},
    )


@case
def ppo_vae_heads():
    p = {
        "enc": A(10, 32),
        "mu": A(32, 6),
        "logvar": A(32, 6),
        "dec": A(6, 32),
        "recon": A(32, 10),
        "pi1": A(6, 32),
        "pi": A(32, 4),
        "v1": A(6, 32),
        "v": A(32, 1),
        "log_std": A(1, 4),
    }

    def loss(p, x, a):
        h = jax.nn.relu(x @ p["enc"])
        mu, lv = h @ p["mu"], h @ p["logvar"]
        z = mu + jnp.exp(lv / 2) * 0.1
        rec = jax.nn.relu(z @ p["dec"]) @ p["recon"]
        lp = -(
            ((jnp.tanh(z @ p["pi1"]) @ p["pi"] - a) / jnp.exp(p["log_std"])) ** 2
        ).sum(-1)
        v = (jnp.tanh(z @ p["v1"]) @ p["v"])[:, 0]
        return (
            ((rec - x) ** 2).mean()
            + (lp * v).mean()
            + 0.5 * (mu**2 + jnp.exp(lv) - lv).mean()
            + 1e-4 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p))
        )

    return (
        loss,
        p,
        (A(5, 10), A(5, 4)),
        {"enc": "io|-", "mu|logvar|dec|pi1|v1": "io", "recon|pi$|^v$|log_std": "-"},
    )


@case
def pinn_and_maml():
    p = {
        "w0": A(2, 16),
        "w1": A(16, 20),
        "w2": A(20, 16),
        "w3": A(16, 3),
        "rff": A(2, 8),
    }

    def loss(p, x, y):
        u = lambda p, x: (
            jnp.tanh(jnp.tanh(jnp.tanh(x @ p["w0"]) @ p["w1"]) @ p["w2"]) @ p["w3"]
            + 0 * (x @ p["rff"]).sum()
        )
        lap = jax.vmap(lambda x: jnp.trace(jax.hessian(lambda x: u(p, x)[0])(x)))(x)
        q = jax.tree.map(
            lambda w, g: w - 0.1 * g,
            p,
            jax.grad(lambda p: ((u(p, x) - y) ** 2).mean())(p),
        )
        return (lap**2).mean() + ((u(q, x) - y) ** 2).mean()

    return (
        loss,
        p,
        (A(5, 2), A(5, 3)),
        {"w0": "io|-", "w1|w2": "io", "w3": "-", "rff": "io|-"},
    )


@case
def tensor_parallel():
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((1,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    p = {
        "emb": A(30, 16),
        "qkv": A(16, 3, 4, 4),
        "o": A(4, 4, 16),
        "up": A(16, 48),
        "down": A(48, 16),
        "out": A(16, 30),
    }

    def f(p, t):
        x = p["emb"][t]

        def block(x, qkv, o, up, down):
            q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, qkv), 2, 0)
            y = jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v), o)
            x = x + lax.psum(y, "m")
            return x + lax.psum(jax.nn.relu(x @ up) @ down, "m")

        x = jax.shard_map(
            block,
            mesh=mesh,
            in_specs=(P(), P(None, None, "m"), P("m"), P(None, "m"), P("m")),
            out_specs=P(),
        )(x, p["qkv"], p["o"], p["up"], p["down"])
        return x @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out": "-", "qkv": "iboo|iooo/3", "^o$": "iio", "up|down": "io"},
    )


@case
def loops_and_branches():
    p = {
        "emb": A(30, 16),
        "stack": A(16, 3, 16),
        "deep": {"up": A(4, 16, 32), "down": A(4, 32, 16)},
        "br": {"a": A(16, 16), "b": A(16, 16)},
        "cell": {"wx": A(16, 24), "wh": A(24, 24)},
        "out": A(24, 30),
    }

    def f(p, t):
        x = p["emb"][t]
        for i in range(3):
            x = x + jnp.tanh(x @ p["stack"][:, i])
        g = lambda i, x: (
            x
            + jax.nn.relu(x @ lax.dynamic_index_in_dim(p["deep"]["up"], i, 0, False))
            @ p["deep"]["down"][i]
        )
        x = lax.fori_loop(0, 4, g, x)
        x = lax.cond(
            t.sum() > 3, lambda x: x @ p["br"]["a"], lambda x: x @ p["br"]["b"], x
        )
        h, _ = lax.scan(
            lambda h, y: (jnp.tanh(y @ p["cell"]["wx"] + h @ p["cell"]["wh"]),) * 2,
            jnp.zeros((x.shape[0], 24)),
            jnp.moveaxis(x, 1, 0),
        )
        return h @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out": "-", "stack": "ibo", "deep": "bio", "br": "io", "cell": "io"},
    )


@case
def ragged_moe():
    p = {
        "emb": A(30, 16),
        "router": A(16, 4),
        "wi": A(4, 16, 40),
        "wo": A(4, 20, 16),
        "shared": A(16, 16),
        "mod": A(16, 1),
        "out": A(16, 30),
    }

    def f(p, t):
        x = p["emb"][t].reshape(-1, 16)
        pr = jax.nn.sigmoid(x @ p["router"])
        w, e = lax.top_k(pr, 2)
        e = e.reshape(-1)
        order = jnp.argsort(e)
        xs = jnp.repeat(x, 2, 0)[order]
        n = jnp.bincount(e, length=4)
        a, b = jnp.split(lax.ragged_dot(xs, p["wi"], n), 2, -1)
        y = lax.ragged_dot(jax.nn.silu(a) * b, p["wo"], n)
        y = (y[jnp.argsort(order)].reshape(-1, 2, 16) * w[..., None]).sum(1)
        return (x + y + jax.nn.sigmoid(x @ p["mod"]) * (x @ p["shared"])) @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out|router|mod": "-", "wi": "bio/2", "wo": "bio", "shared": "io"},
    )


@case
def soft_moe_swin():
    p = {
        "emb": A(16, 32),
        "phi": A(32, 3, 2),
        "experts": {"fc1": A(3, 32, 48), "fc2": A(3, 48, 32)},
        "cpb": {"w1": A(2, 16), "w2": A(16, 4)},
        "qkv": A(32, 96),
        "tau": A(4, 1, 1),
        "gate": A(32, 3),
        "dense": A(3, 32, 32),
        "out": A(32, 5),
    }

    def f(p, x):
        x = x @ p["emb"]
        lg = jnp.einsum("bnd,dep->bnep", x, p["phi"])
        d, c = (
            jax.nn.softmax(lg, 1),
            jax.nn.softmax(lg.reshape(*lg.shape[:2], -1), -1).reshape(lg.shape),
        )
        z = jnp.einsum("bnep,bnd->bepd", d, x)
        z = jnp.einsum(
            "bepf,efd->bepd",
            jax.nn.gelu(jnp.einsum("bepd,edf->bepf", z, p["experts"]["fc1"])),
            p["experts"]["fc2"],
        )
        x = x + jnp.einsum("bnep,bepd->bnd", c, z)
        g = jnp.stack(
            jnp.meshgrid(jnp.linspace(-1, 1, 6), jnp.linspace(-1, 1, 6), indexing="ij"),
            -1,
        )
        bias = jax.nn.relu(g @ p["cpb"]["w1"]) @ p["cpb"]["w2"]
        q, k, v = jnp.moveaxis((x @ p["qkv"]).reshape(*x.shape[:2], 3, 4, 8), 2, 0)
        s = jnp.einsum("bthk,bshk->bhts", q, k) * jnp.exp(p["tau"]) + jnp.moveaxis(
            bias, -1, 0
        )
        x = x + jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(s), v).reshape(x.shape)
        gt = jax.nn.softmax(x @ p["gate"])
        x = x + jnp.einsum(
            "bte,bteo->bto", gt, jnp.einsum("bti,eio->bteo", x, p["dense"])
        )
        return x.mean(1) @ p["out"]

    return (
        f,
        p,
        (A(2, 6, 16),),
        {
            "^emb": "io|-",
            "phi": "-|ioo",
            "experts": "bio",
            "cpb/w1": "io|-",
            "cpb/w2": "io",
            "qkv": "io/3",
            "tau|out": "-",
            "gate": "-",
            "dense": "bio",
        },
    )
