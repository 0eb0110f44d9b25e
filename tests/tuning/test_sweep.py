"""The bracket, divergence, seeds and mistakes, on runs whose losses are known.

Gradient descent on w^2 / 2 from w = 1 has the loss (1 - rate)^(2 t) / 2 after t steps.
"""

import io
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om

pytestmark = pytest.mark.programs(8, "two a sweep, and two when its bracket widens")
ONES = np.ones((10, 1), np.float32)
START = {"w": np.ones(1, np.float32)}


def loss(params, x):
    return (x * params["w"] ** 2).sum() / 2


def sweep(make=optax.sgd, loss=loss, params=START, batches=ONES, **options):
    options = {"progress": False, "rates": (0.25, 0.5)} | options
    return om.sweep(make, loss, params, batches, **options)


def known(rate, steps=10):
    return 0.5 * (1 - rate) ** (2.0 * np.arange(steps))


@pytest.mark.parametrize("memory", [0, 2**20])
def test_losses_and_the_best_are_those_of_the_formula(memory):
    found = sweep(rates=(0.5, 1.75, 0.25), memory=memory)
    assert found.rates == (0.25, 0.5, 1.75)
    assert found.best == 0.5
    assert not found.at_end
    for rate in found.rates:
        np.testing.assert_allclose(found.losses[rate], [known(rate)], rtol=1e-5)
        last = known(rate)[-1]  # One of ten losses is a tenth.
        np.testing.assert_allclose(found.finals[rate], [last], rtol=1e-5)
    assert found.together == (memory > 0)


@pytest.mark.parametrize("memory", [0, 2**20])
@pytest.mark.parametrize(
    ("rates", "tried"),
    [
        ((0.1, 0.2), (0.1, 0.2, 0.4, 0.8, 1.6)),
        ((1.5, 1.8), (1.5 / 1.2**3, 1.5 / 1.2**2, 1.25, 1.5, 1.8)),
        ((0.7,), (0.35, 0.7, 1.4)),
    ],
    ids=["up", "down", "one"],
)
def test_the_bracket_widens_at_the_end_where_the_best_is(rates, tried, memory):
    """Until the best, nearest to one, is inside."""
    found = sweep(rates=rates, memory=memory)
    np.testing.assert_allclose(found.rates, tried, rtol=1e-5)
    assert found.best == min(found.rates, key=lambda rate: abs(1 - rate))
    assert not found.at_end


def test_the_bracket_has_a_limit():
    found = sweep(rates=(0.01, 0.02), widen=2)
    assert found.rates == (0.01, 0.02, 0.04, 0.08)
    assert found.at_end
    assert "The best rate is the largest that was tried" in str(found)
    found = sweep(rates=(1.7, 1.8), widen=0)
    assert found.rates == (1.7, 1.8)
    assert "The best rate is the smallest that was tried" in str(found)


def test_rates_that_are_equal_when_rounded_end_the_search():
    assert sweep(rates=(0.1, 0.1 + 1e-9)).rates == (0.1, 0.1 + 1e-9)


def test_rates_of_numpy_and_a_generator_of_batches():
    with pytest.raises(ValueError, match="type generator has no length"):
        sweep(batches=(x for x in ONES))
    found = sweep(rates=np.array([0.25, 0.5]), batches=(x for x in ONES), steps=3)
    assert found.rates[:2] == (0.25, 0.5)
    assert type(found.best) is float


def test_a_schedule_is_kept():
    make = lambda rate: optax.sgd(optax.linear_schedule(rate, 0.0, 10))
    found = sweep(make, widen=0)
    for rate in found.rates:
        w = np.cumprod([1, *(1 - rate * (1 - np.arange(9) / 10))])
        np.testing.assert_allclose(found.losses[rate][0], w**2 / 2, rtol=1e-5)


def test_the_validation_loss_decides_where_there_is_one():
    """The training loss is smallest at one, the other where w has gone farthest."""
    of = lambda params: params["w"][0]
    found = sweep(rates=(0.5, 1.0, 1.75), evaluate=of, widen=0)
    np.testing.assert_allclose(found.finals[1.75], [0.75**10], rtol=1e-5)
    assert found.best == 1.0
    found = sweep(rates=(0.5, 1.75), evaluate=lambda p: -of(p), widen=0)
    assert found.best == 1.75
    assert "loss: validation loss; 10 steps" in str(found)


@pytest.mark.parametrize("memory", [0, 2**20])
def test_seeds_have_their_own_starts_and_batches_and_their_mean_decides(memory):
    start = lambda seed: {"w": np.full(1, 1.0 + seed, np.float32)}
    batches = lambda seed: np.full((4, 1), 1.0 + seed, np.float32)
    seeds = (0, 2)
    found = sweep(
        params=start,
        batches=batches,
        seeds=seeds,
        rates=(0.25, 0.5),
        memory=memory,
        widen=0,
    )
    for rate, losses in found.losses.items():
        for seed, got in zip(seeds, losses, strict=True):
            x = 1.0 + seed
            w = x * (1 - rate * x) ** np.arange(4.0)
            np.testing.assert_allclose(got, x * w**2 / 2, rtol=1e-5)
    means = {rate: x[:, -1].mean() for rate, x in found.losses.items()}
    assert found.best == min(means, key=means.get)
    assert "2 seeds" in str(found)
    assert "±" in str(found)


@pytest.mark.parametrize("memory", [0, 2**20])
def test_keys_are_batches(memory):
    """Data that is drawn inside of the loss, in another order for each seed."""
    draw = lambda key: jax.random.uniform(key, (1,))
    keys = lambda seed: jax.random.split(jax.random.key(seed), 3)
    found = sweep(
        loss=lambda params, key: loss(params, draw(key)),
        params=lambda _: START,
        batches=keys,
        seeds=(1, 2),
        memory=memory,
        widen=0,
    )
    for seed, got in zip((1, 2), found.losses[0.5], strict=True):
        x = np.asarray(jax.vmap(draw)(keys(seed)))[:, 0]
        w = np.cumprod([1, *(1 - 0.5 * x[:-1])])
        np.testing.assert_allclose(got, x * w**2 / 2, rtol=1e-5)


@pytest.mark.parametrize("memory", [0, 2**20])
def test_what_diverges_stops_and_is_not_chosen(memory):
    steps, told = 200, []
    found = sweep(
        rates=(0.5, 1e3, 1e9),
        batches=np.ones((steps, 1), np.float32),
        memory=memory,
        progress=lambda *x: told.append(x),
    )
    assert np.isinf(found.finals[1e9]).all()
    first = np.isfinite(found.losses[1e9][0]).sum()
    assert np.isnan(found.losses[1e9][0, first:]).all()
    assert f"diverged at step {first + 1}" in str(found)
    assert found.best < 1e3
    if not memory:  # One that diverges early is not trained to its end.
        assert len([x for x in told if x[0] == 1e9]) == 2
        assert len([x for x in told if x[0] == 0.5]) == 21


@pytest.mark.parametrize("memory", [0, 2**20])
def test_all_that_diverge_get_a_sentence_after_smaller_rates(memory):
    told = []
    with pytest.raises(
        ValueError, match=r"Every rate of .* diverged: the first at step"
    ):
        sweep(
            rates=(1e9, 1e10),
            batches=np.ones((100, 1), np.float32),
            memory=memory,
            progress=lambda *x: told.append(x[0]),
        )
    assert min(told) == 1e5


def test_a_loss_that_is_never_finite_gets_another_sentence():
    nan = lambda params, x: loss(params, x) * jnp.nan
    with pytest.raises(ValueError, match="not finite before the first update"):
        sweep(loss=nan, widen=0)
    with pytest.raises(ValueError, match="`evaluate` is finite for none of them"):
        sweep(evaluate=lambda params: params["w"][0] * jnp.nan, widen=0)


def test_a_factory_that_needs_a_number_is_tried_apart():
    make = lambda rate: optax.sgd(float(rate))
    said = "`make` does not take a traced rate"
    options = {"rates": (0.5, 0.75, 1.75), "widen": 0, "progress": False}
    with pytest.warns(UserWarning, match=said) as warned:
        found = om.sweep(make, loss, START, ONES, **options)
    assert not found.together
    assert warned[0].filename == __file__
    for rate in found.rates:
        np.testing.assert_allclose(found.losses[rate], [known(rate)], rtol=1e-5)
    with pytest.raises(AttributeError):  # It is no fault of tracing.
        sweep(lambda rate: optax.sgd(rate).no_such_name)


def test_which_warm_up_of_optax_takes_a_traced_rate():
    cosine = optax.warmup_cosine_decay_schedule
    with pytest.warns(UserWarning, match="so there is a program for each rate"):
        found = sweep(lambda r: optax.sgd(cosine(0.0, r, 2, 10)), rates=0.5, widen=0)

    def joined(rate):
        parts = (
            optax.linear_schedule(0.0, rate, 2),
            optax.cosine_decay_schedule(rate, 8),
        )
        return optax.sgd(optax.join_schedules(parts, [2]))

    other = sweep(joined, rates=0.5, widen=0)
    assert (found.together, other.together) == (False, True)
    np.testing.assert_allclose(found.losses[0.5], other.losses[0.5], rtol=1e-5)
    t = np.arange(9)
    rates = 0.5 * np.where(t < 2, t / 2, (1 + np.cos(np.pi * (t - 2) / 8)) / 2)
    w = np.cumprod([1.0, *(1 - rates)])
    np.testing.assert_allclose(found.losses[0.5][0], w**2 / 2, rtol=1e-5)


def test_a_step_of_the_users_own():
    def step(tx, params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, 2 * value

    found = sweep(loss=None, step=step, rates=(0.5, 1.75), widen=0)
    np.testing.assert_allclose(found.losses[0.5], [2 * known(0.5)], rtol=1e-5)


def test_a_step_that_changes_parameters_in_place_gets_a_sentence():
    def step(tx, params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, _ = tx.update(grads, state, params)
        params["w"] = params["w"] + updates["w"]
        return value

    with pytest.raises(
        ValueError, match=r"must return \(params, state, loss\)"
    ) as error:
        sweep(loss=None, step=step)
    assert "in place" in str(error.value)
    np.testing.assert_array_equal(START["w"], [1])


def test_the_users_arrays_stay_alive():
    """The memory of what steps return is used again; that of arguments is not."""
    params = {"w": jnp.ones(1)}
    for memory in (0, 2**20):
        sweep(params=params, memory=memory, widen=0)
        np.testing.assert_array_equal(params["w"], [1])


def test_bfloat16_stays_bfloat16():
    """A rate is a Python number for promotion, as in a plain loop."""
    seen = set()

    def step(tx, params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = tx.update(grads, state, params)
        seen.add(str(updates["w"].dtype))
        return optax.apply_updates(params, updates), state, value

    params = {"w": jnp.ones(1, jnp.bfloat16)}
    for memory in (0, 2**20):
        sweep(loss=None, step=step, params=params, memory=memory, widen=0)
    assert seen == {"bfloat16"}


def test_iterators_are_read_once_for_all_rates():
    found = sweep(batches=iter(ONES), steps=7, widen=0)
    assert found.losses[0.5].shape == (1, 7)
    listed = sweep(batches=[*ONES[:7]], widen=0)
    np.testing.assert_array_equal(found.losses[0.5], listed.losses[0.5])
    endless = itertools.repeat(ONES[0])
    assert sweep(batches=endless, steps=3, widen=0).losses[0.5].shape == (1, 3)


spent = iter(ONES)
list(spent)
MISTAKES = {
    "rates": ({"rates": (0.1, -0.2)}, "`rates` must be positive, got -0.2"),
    "zero": ({"rates": 0.0}, "`rates` must be positive, got 0.0"),
    "no number": ({"rates": ("a",)}, "`rates` must be a number"),
    "none": ({"rates": ()}, "`rates` must have one rate or more"),
    "optimizer": ({"make": optax.sgd(0.1)}, "`make` must be a function"),
    "uncalled": ({"make": lambda _: optax.sgd}, "call it"),
    "neither": ({"loss": None}, "pass one of the two"),
    "both": ({"step": loss}, "pass one of the two"),
    "function": ({"params": lambda _: START}, r"pass seeds=\(0,\)"),
    "no function": ({"seeds": (0, 1)}, "must be a function from a seed"),
    "batches of a seed": ({"batches": lambda _: ONES}, r"pass seeds=\(0,\)"),
    "no end": ({"batches": itertools.repeat(1)}, "has no length .* pass steps="),
    "spent": ({"batches": spent, "steps": 10}, "it was read before"),
    "no seeds": ({"seeds": (), "params": lambda _: START}, "one integer or more"),
    "a number of seeds": ({"seeds": 3, "params": lambda _: START}, r"pass \(0, 1"),
    "no optimizer": ({"make": lambda _: None}, r"`make\(rate\)` must be an optimizer"),
    "no loss": ({"loss": 3}, "`loss` must be a function or None, got int"),
    "no validation": ({"evaluate": 1.0}, "`evaluate` must be a function or None"),
    "validation": ({"evaluate": lambda p: p["w"]}, r"`evaluate` must .* got \(1,\)"),
    "nothing": ({"evaluate": lambda _: None}, "`evaluate` must .* got NoneType"),
    "loss of a step": (
        {"loss": None, "step": lambda _, params, state, x: (params, state, x)},
        r"`step` must return a scalar loss, got \(1,\)",
    ),
    "Python number": ({"params": {"w": START["w"], "v": 1.0}}, "the Python number 1.0"),
    "no parameters": ({"params": {}}, "must have arrays of floats, got none"),
    "few": ({"steps": 11}, "must have 11 batches, got 10; pass more, or steps="),
    "empty": ({"batches": []}, "must have one batch or more, got 0"),
    "stacked": ({"batches": (ONES, ONES)}, r"list\(zip\(x, y\)\)"),
    "uneven": (
        {
            "params": lambda _: START,
            "batches": lambda seed: ONES[seed:],
            "seeds": (0, 1),
        },
        r"as many batches for every seed, got \[10, 9\]; pass steps=9",
    ),
}


@pytest.mark.parametrize(("options", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_a_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        sweep(**options)


def test_the_table():
    found = sweep(rates=(0.5, 1.0, 1e30), batches=np.ones((20, 1), np.float32))
    assert str(found) == (
        "rate   loss\n"
        "0.5    4.547e-12\n"
        "1      0  <- best\n"
        "1e+30  diverged at step 2\n"
        "loss: mean of the last 2 of 20 training losses; 20 steps, in one program"
    )


def test_the_picture():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    start = lambda seed: {"w": np.full(1, 1.0 + seed, np.float32)}
    found = sweep(params=start, seeds=(0, 1), rates=(0.5, 0.75, 1.75, 1e30), widen=0)
    axes = found.plot(label="SGD", color="black", linestyle="--")
    line, *dots = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0.5, 0.75, 1.75])
    means = [found.finals[rate].mean() for rate in (0.5, 0.75, 1.75)]
    np.testing.assert_allclose(line.get_ydata(), means)
    assert line.get_label() == "SGD"
    assert len(dots) == 2
    assert axes.get_xlabel() == "learning rate"
    assert found.plot(axes) is axes
    pyplot.close("all")


def test_rich_and_matplotlib_are_optional(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.warns(UserWarning, match="Bars need rich: pip install rich, or pass"):
        found = sweep(widen=0, progress=True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="`plot` needs matplotlib: pip"):
        found.plot()


def test_bars_name_their_columns(monkeypatch):
    """One for each rate, one for all, on a terminal only."""
    console = pytest.importorskip("rich.console")
    made = []

    def terminal(**_):
        made.append(console_class(file=text, width=120, force_terminal=True))
        return made[-1]

    text, console_class = io.StringIO(), console.Console
    monkeypatch.setattr(console, "Console", terminal)
    sweep(
        rates=(0.5, 1e9), batches=np.ones((60, 1), np.float32), progress=True, widen=0
    )
    shown = text.getvalue()
    for word in (
        "all",
        "rate 0.5",
        "rate 1e+09",
        "step",
        "loss",
        "time",
        "left",
        "diverged",
    ):
        assert word in shown
    assert made


@pytest.mark.parametrize(("memory", "counts"), [(0, range(0, 9)), (2**20, range(0, 5))])
def test_the_steps_of_all_seeds_are_told(memory, counts):
    """One run of all seeds, or one after the other; a lost run counts as done."""
    told = []
    sweep(
        rates=(0.5, 1e30),
        params=lambda _: START,
        batches=ONES[:4],
        seeds=(0, 1),
        memory=memory,
        widen=0,
        progress=lambda rate, *x: told.append((rate, *x[:2])),
    )
    fine = [x[1:] for x in told if x[0] == 0.5]
    assert fine == [(done, counts[-1]) for done in counts]
    assert max(x[1] for x in told if x[0] == 1e30) == counts[-1]
