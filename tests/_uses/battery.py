"""Models with the right answer for each leaf, and how answers are compared.

An answer has a letter for each axis, ``i`` (input), ``o`` (output) or ``b`` (batch),
and ``/n`` or ``/(sizes)`` for sections of the outputs. ``-`` is the other optimizer:
embedding, last layer, router, table, scale, filter of one channel; ``-router`` is one
of these kinds alone. ``a|b`` is either. With ``?`` at its end, as ``io?``, it is right
to ask, too; a ``?`` alone has to ask.
"""

import functools
import importlib
import re
import warnings

import jax
import jax.numpy as jnp
from jax import lax

from optax_matrix.matrices.use.rule import by_use

S = jax.ShapeDtypeStruct
CASES = {}
GROUPS = {}
_PLACES = {}


def A(*shape, dtype=jnp.float32):
    return S(shape, dtype)


def T(*shape):
    return S(shape, jnp.int32)


def case(make):
    """Registers a function that returns a function, parameters, inputs and answers."""
    CASES[make.__name__] = make
    return make


def small(group, *inputs, **leaves):
    """Registers a function of parameters and inputs as a case of a group.

    Each leaf is written as ``"answer size size ..."``, with ``complex`` at its end if
    so.
    """

    def register(fn):
        params, answers = {}, {}
        for name, text in leaves.items():
            answer, *sizes = text.split()
            dtype = jnp.complex64 if "complex" in sizes else jnp.float32
            params[name] = A(*(int(n) for n in sizes if n.isdigit()), dtype=dtype)
            answers[f"^{name}$"] = answer.replace(",", ", ")
        cases, code = GROUPS.setdefault(group, {}), fn.__code__
        place = code.co_filename, code.co_firstlineno
        # Doctests load the module a second time, under another name.
        assert _PLACES.setdefault((group, fn.__name__), place) == place, fn.__name__
        cases[fn.__name__] = lambda: (fn, params, inputs, answers)
        return fn

    return register


def ln(x, g):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-6) * g


def rms(x, g):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def letters(numbers, shape):
    """Dimension numbers as an answer."""
    if numbers is None:
        return "-"
    axes = lambda x: {a % len(shape) for a in (x if isinstance(x, tuple) else (x,))}
    into, out = axes(numbers.reduction_axis), axes(numbers.output_axis)
    side = lambda a: "i" if a in into else "o" if a in out else "b"
    sections = numbers.output_sections
    word = "".join(map(side, range(len(shape))))
    return word if sections == 1 else f"{word}/{sections}"


def answer(verdict):
    """A verdict as an answer; ``?`` and the reason where it asks."""
    if verdict.kind in ("unclear", "not used"):
        return f"? {verdict.reason}"
    if verdict.kind == "matrix":
        return letters(verdict.numbers, verdict.shape)
    return f"-{verdict.kind}"


def read(fn, params, *inputs):
    """The verdicts on parameters, without the question."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return by_use(fn, params, *inputs).verdicts


@functools.cache
def read_case(name):
    """Parameters, answers and verdicts of a case, which several tests ask for."""
    if name.startswith("keras"):
        importlib.import_module("keras").utils.clear_session()  # It counts layers.
    fn, params, inputs, answers = CASES[name]()
    return params, answers, read(fn, params, *inputs)


def judged(verdicts, answers):
    """Leaves that are wrong in silence, and by path why others ask without right."""
    wrong, asked = [], {}
    for verdict in verdicts:
        if sum(n > 1 for n in verdict.shape) < 2:
            continue
        want, got = answer_of(verdict.path, answers), answer(verdict)
        assert want is not None, verdict.path
        if is_right(got, want, verdict.shape):
            continue
        if got.startswith("?"):
            asked[verdict.path] = verdict.reason
        else:
            wrong.append(f"{verdict.path} {verdict.shape}: {got}, not {want}")
    return wrong, asked


def is_right(got, want, shape):
    """Whether an answer is one of those wanted; axes of length one are nowhere."""

    def short(word):
        sides, slash, sections = word.partition("/")
        if len(sides) == len(shape):
            pairs = zip(sides, shape, strict=True)
            sides = "".join(side for side, n in pairs if n > 1)
        return sides + slash + sections

    if got.startswith("?"):
        return want.endswith("?")
    allowed = want.rstrip("?").split("|")
    if got.startswith("-"):
        return got in allowed or "-" in allowed
    return short(got) in map(short, allowed)


def answer_of(path, answers):
    """The first answer whose expression the path matches."""
    return next((x for pattern, x in answers.items() if re.search(pattern, path)), None)
