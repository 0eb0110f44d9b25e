"""The search for a chain, on losses made by hand."""

import pytest

from examples.study.bench import confirmation, halving, table
from examples.study.bench.chains import KNOWN
from examples.study.bench.comparison import NotYetError
from examples.study.bench.config import Result
from examples.study.bench.confirmation import is_chain
from examples.study.bench.search import TUNING, due
from examples.study.bench.studies import STUDIES
from examples.study.bench.tasks import MAIN

PARTS_LOST = {"none": 0.3, "average": 0.2, "sign": 0.5, "eigen": 0.1, "out/in": 0.05}
MUONEQ = next(name for name, recipe in KNOWN.items() if recipe == "muoneq")


def loss(config):
    """Every part costs something; so do a small rate and a short run."""
    words = [word.partition("=")[2] for word in config.method.split(":")]
    lost = sum(PARTS_LOST.get(word, 0.0) for word in words)
    other_order = 0.2 * ("row" in words) * (config.task == halving.TASK_1)
    lost -= 0.5 * (config.method == MUONEQ)
    return 1 + lost + other_order + 1 / config.rate / 1e4 + 10 / config.steps


@pytest.fixture(scope="module")
def searched():
    """All results of a search, and the sizes of its rounds."""
    found, rounds = {}, []
    while True:
        missing = [e for e in halving.entries(found) if due(e, found)]
        if not missing:
            return found, rounds
        rounds.append((len(missing), {e.task for e in missing}))
        for entry in missing:
            while config := due(entry, found):
                value = loss(config)
                found[config] = Result(value, [[0, 5.0]], 1.0, 8, 1.0)


def test_rounds(searched):
    found, rounds = searched
    tasks = {halving.TASK_1, halving.TASK_2}
    assert rounds == [(258, {"books/search"}), (48, {"books/search"}), (24, tasks)]
    assert {config.seed for config in found} == {TUNING}
    assert not {config.task for config in found} - tasks


def test_the_best_chains_survive(searched):
    found, _ = searched
    first = halving.ordered(halving.first_round(), found)
    assert set(halving.last_round(found)) <= {e.method for e in first[:48]}
    names = halving.finalists(found)
    assert len(names) == halving.CHOSEN
    assert MUONEQ in halving.last_round(found)
    assert MUONEQ not in names  # It is published.
    assert all("average" not in name and "sign" not in name for name in names)


@pytest.fixture(scope="module")
def compared(searched):
    """The search and the comparison of every task, whose methods are all alike."""
    found = dict(searched[0])
    for task in MAIN:
        for entry in STUDIES[task]({}):
            while config := due(entry, found):
                found[config] = result(1.0)
    return found


def result(loss):
    return Result(loss, [[0, 5.0], [400, 1.0]], 1.0, 8, 1.0)


def confirmed(compared, leads, shorter=0.0):
    """All runs of the confirmation; `leads[chain][task]` is what a chain gains.

    `shorter` is what the published methods gain by their shorter momentum.
    """
    found = dict(compared)
    names = halving.finalists(found)
    for which, task in enumerate(MAIN):
        for entry in STUDIES[f"confirm_{task}"](found):
            of_chains = is_chain(entry)
            if of_chains:
                lead = leads[names.index(entry.method)][which]
            else:
                lead = shorter * confirmation.is_shortened(entry)
            while config := due(entry, found):
                found[config] = result(1 - lead + 1e-3 * of_chains * (config.seed % 3))
    return found


@pytest.mark.broad
def test_the_finalists_are_confirmed_on_other_seeds_and_data(compared):
    entries = STUDIES["confirm_books"](compared)
    assert {e.task for e in entries} == {"books"}
    assert all(e.seeds == confirmation.SEEDS for e in entries)
    assert not set(confirmation.SEEDS) & {config.seed for config in compared}
    methods = [e.method for e in entries]
    published = methods[1:4]
    assert methods[4:7] == [f"{name}:b1=0.8" for name in published]
    assert methods[-halving.CHOSEN :] == halving.finalists(compared)
    with pytest.raises(NotYetError, match="run confirm_shakespeare"):
        STUDIES["confirm_longer"](compared)
    assert table.table("verdict", compared) == "The chains are not confirmed yet."


@pytest.mark.broad
def test_only_chains_ahead_on_every_task_go_on(compared):
    """One is ahead everywhere, one on two tasks, one within the interval."""
    nothing = 0.0, 0.0, 0.0
    leads = (0.1, 0.1, 0.1), (0.1, 0.1, -0.1), (0.1, 0.1, 1e-3), nothing, nothing
    found = confirmed(compared, leads)
    first = halving.finalists(found)[0]
    assert confirmation.survivors(found) == [first]
    for study, task, steps in (
        ("confirm_shorter", "books", 100),
        ("confirm_longer", "books", 1600),
        ("confirm_large", "large", 400),
    ):
        entries = STUDIES[study](found)
        assert [e.method for e in entries if is_chain(e)] == [first]
        assert len(entries) == 2 + 2 * confirmation.PUBLISHED
        assert {(e.task, e.steps, e.seeds) for e in entries} == {
            (task, steps, confirmation.LATER)
        }
    text = table.table("verdict", found)
    assert f"\n\nOn every task beyond the interval: `{first}`.\n\n" in text
    assert f"| `{first}` | -0.0990 ± 0.0008 | -0.0990 ± 0.0008 |" in text


@pytest.mark.broad
def test_without_a_chain_ahead_nothing_more_runs(compared):
    found = confirmed(compared, [[-0.1] * 3] * halving.CHOSEN)
    assert STUDIES["confirm_longer"](found) == []
    assert table.table("confirm_large", found) == "No chain is left for this study."
    assert "No chain beats the best published" in table.table("verdict", found)


@pytest.mark.broad
def test_chains_also_meet_the_published_methods_with_their_papers_momentum(compared):
    found = confirmed(compared, [[0.1] * 3] * halving.CHOSEN, shorter=0.3)
    assert confirmation.survivors(found) == []
    first, second = table.table("verdict", found).split("paper's momentum:")
    assert ":b1=0.8`" in first
    assert ":b1=" not in second
    assert first.count("+0.2010 ± 0.0008") == second.count("-0.0990 ± 0.0008") == 15


@pytest.mark.slow
def test_then_the_chains_have_the_shorter_momentum_too(compared):
    found = confirmed(compared, [[-0.1] * 3] * halving.CHOSEN)
    entries = STUDIES["confirm_momentum"](found)
    before = STUDIES["confirm_books"](found)
    chains = [entry for entry in entries if is_chain(entry)]
    names = [e.method for e in before if not is_chain(e)]
    assert [e.method for e in entries[: -halving.CHOSEN]] == names
    assert {e.seeds for e in entries} == {confirmation.LATER}
    names = halving.finalists(found)
    assert [e.method for e in chains] == [f"{name}:b1=0.8" for name in names]
    assert "momentum 0.8, too" not in table.table("verdict", found)
    for entry in entries:
        while config := due(entry, found):
            found[config] = result(1 + 0.2 * is_chain(entry))
    _, text = table.table("verdict", found).split("momentum 0.8, too:")
    assert text.count(":b1=0.8` | +0.2000 ± 0.0000 |") == halving.CHOSEN


def test_the_report(searched):
    assert "516 runs are left" in table.table("search", {})
    text = table.table("search", searched[0])
    assert f"| `{halving.finalists(searched[0])[0]}` |" in text
    assert "| frame | eigen | none | -0.2000 | 48 of 48 |" in text
    assert "| momentum | lookahead | average | -0.2000 | 86 of 86 |" in text
