"""The search for a chain, on losses made by hand."""

import pytest

from examples.bench import halving, table
from examples.bench.config import Result
from examples.bench.search import TUNING, due
from examples.bench.studies import CONFIRMING, STUDIES

PARTS_LOST = {"none": 0.3, "average": 0.2, "sign": 0.5, "eigen": 0.1, "out/in": 0.05}


def loss(config):
    """Every part costs something; so do a small rate and a short run."""
    words = [word.partition("=")[2] for word in config.method.split(":")]
    lost = sum(PARTS_LOST.get(word, 0.0) for word in words)
    other_order = 0.2 * ("row" in words) * (config.task == halving.TASK_1)
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
    assert rounds == [(306, {"books/search"}), (48, {"books/search"}), (24, tasks)]
    assert {config.seed for config in found} == {TUNING}
    assert not {config.task for config in found} - tasks


def test_the_best_chains_survive(searched):
    found, _ = searched
    first = halving.ordered(halving.first_round(), found)
    assert set(halving.last_round(found)) <= {e.method for e in first[:48]}
    names = halving.finalists(found)
    assert len(names) == halving.CHOSEN
    assert all("average" not in name and "sign" not in name for name in names)


def test_the_finalists_are_confirmed_on_other_seeds_and_data(searched):
    found, _ = searched
    main = {}
    for entry in STUDIES["books"]({}):
        while config := due(entry, main):
            main[config] = Result(1.0, [[0, 5.0], [400, 1.0]], 1.0, 8, 1.0)
    entries = STUDIES["confirm_books"](found | main)
    assert {e.task for e in entries} == {"books"}
    assert all(e.seeds == CONFIRMING for e in entries)
    assert not set(CONFIRMING) & {config.seed for config in found | main}
    methods = [e.method for e in entries]
    assert methods[0] == "adamw"
    assert methods[-halving.CHOSEN :] == halving.finalists(found)


def test_the_report(searched):
    assert "306 chains" not in table.table("search", {})
    assert "612 runs are left" in table.table("search", {})
    text = table.table("search", searched[0])
    assert f"| `{halving.finalists(searched[0])[0]}` |" in text
    assert "| map | polar | 108 |" in text
