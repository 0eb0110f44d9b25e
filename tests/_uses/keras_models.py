"""Models of Keras."""

import functools
import os

import jax.numpy as jnp
from _uses.battery import A, S, T, case

os.environ.setdefault("KERAS_BACKEND", "jax")


def keras_case(model, *inputs):
    tv = [S(tuple(v.shape), jnp.dtype(v.dtype)) for v in model.trainable_variables]
    ntv = [jnp.zeros(v.shape, v.dtype) for v in model.non_trainable_variables]
    names = [v.path for v in model.trainable_variables]
    assert len(set(names)) == len(names)
    p = {}
    for n, v in zip(names, tv, strict=True):
        node = p
        *front, last = n.split("/")
        for k in front:
            node = node.setdefault(k, {})
        node[last] = v

    def fn(p, *a):
        get = lambda n: functools.reduce(lambda d, k: d[k], n.split("/"), p)
        return model.stateless_call([get(n) for n in names], ntv, *a)[0]

    return fn, p, inputs


@case
def keras_1d():
    import keras
    from keras import layers as L

    x = i = keras.Input((16, 6))
    x = L.Conv1D(8, 5, activation="relu")(x)
    x = L.Conv1D(12, 3, activation="relu")(x)
    x = L.Conv1DTranspose(10, 2, strides=2)(x)
    x = L.SeparableConv1D(14, 3)(x)
    x = L.Bidirectional(L.GRU(7, return_sequences=True))(x)
    x = L.LSTM(9)(x)
    x = L.Dense(11, activation="relu")(x)
    o = L.Dense(3)(x)
    return *keras_case(keras.Model(i, o), A(2, 16, 6)), {
        "conv1d(_\\d+)?/kernel": "iio|-first",
        "transpose(_\\d+)?/kernel": "ioi",
        "depthwise_kernel": "-",
        "pointwise_kernel": "iio",
        "gru.*(kernel)": "io/3",
        "gru.*bias": "-",
        "lstm.*kernel": "io/4",
        "^dense/kernel": "io",
        "^dense_1/kernel": "-",
        "bias": "-",
    }


@case
def keras_2d():
    import keras
    from keras import layers as L

    x = i = keras.Input((12, 12, 3))
    x = L.Conv2D(8, 3, use_bias=False)(x)
    x = L.BatchNormalization()(x)
    x = L.DepthwiseConv2D(3)(x)
    x = L.SeparableConv2D(16, 3)(x)
    x = L.Conv2DTranspose(10, 2)(x)
    x = L.GlobalAveragePooling2D()(x)
    o = L.Dense(5)(x)
    return *keras_case(keras.Model(i, o), A(2, 12, 12, 3)), {
        "^conv2d/kernel": "iiio|-",
        "depthwise_conv2d.*kernel|depthwise_kernel": "-",
        "pointwise_kernel": "iiio",
        "transpose.*kernel": "iioi",
        "dense/kernel": "-",
    }


@case
def keras_attention():
    import keras
    from keras import layers as L

    i = keras.Input((12,), dtype="int32")
    x = L.Embedding(40, 16)(i)
    for _ in range(2):
        y = L.MultiHeadAttention(4, 4)(L.LayerNormalization()(x), x)
        x = L.Add()([x, y])
        y = L.Dense(16)(L.Dense(32, activation="gelu")(x))
        x = L.Add()([x, y])
    y = L.EinsumDense(
        "abc,cd->abd", output_shape=(None, 24), bias_axes="d", activation="relu"
    )(x)
    o = L.Dense(40)(y)
    return *keras_case(keras.Model(i, o), T(2, 12)), {
        "embeddings": "-",
        "(query|key|value)/kernel": "ioo",
        "attention_output/kernel": "iio",
        "(query|key|value)/bias": "-",
        "dense(_[0123])?/kernel": "io",
        "einsum_dense/kernel": "io",
        "dense_4/kernel": "-",
    }


@case
def keras_efficientnet():
    import keras

    return *keras_case(
        keras.applications.EfficientNetV2B0(
            weights=None, classes=20, input_shape=(64, 64, 3)
        ),
        A(1, 64, 64, 3),
    ), {
        "dwconv|depthwise": "-",
        "stem_conv/": "iiio|-",
        "conv|expand|project|se_": "iiio",
        "predictions": "-",
    }


@case
def keras_mobilenet():
    import keras

    return *keras_case(
        keras.applications.MobileNetV3Small(
            weights=None, classes=20, input_shape=(64, 64, 3), dropout_rate=0
        ),
        A(1, 64, 64, 3),
    ), {
        "depthwise": "-",
        "^conv/": "iiio|-",
        "logits": "-",
        "conv|expand|project|squeeze": "iiio",
    }


@case
def keras_convlstm():
    import keras
    from keras import layers as L

    x = i = keras.Input((4, 8, 8, 3))
    x = L.ConvLSTM2D(6, 3, return_sequences=True)(x)
    x = L.ConvLSTM2D(5, 3)(x)
    x = L.Flatten()(x)
    o = L.Dense(3)(x)
    return *keras_case(keras.Model(i, o), A(2, 4, 8, 8, 3)), {
        "dense/kernel": "-",
        "kernel": "iiio/4",
    }
