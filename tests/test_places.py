"""What `places.py` prints is true of every recipe."""

import functools

import places
import pytest
from _registry import TABLE


def test_no_recipe_lacks_a_place():
    found = {name: [x.add for x in places.lacking(name)] for name in TABLE}
    assert not {name: add for name, add in found.items() if add}


def test_a_new_name_lacks_all_of_them():
    assert places.lacking("no_such_method") == [x for x in places.PLACES if not x.may]
    signs = [line[:3] for line in places.report("no_such_method")]
    assert set(signs) == {"-- ", "may"}


def test_contributors_are_told_to_ask():
    told = (places.ROOT / ".github" / "CONTRIBUTING.md").read_text()
    assert "`python tests/places.py NAME`" in told


def test_every_place_is_one_that_some_recipe_has():
    for place in places.PLACES:
        having = [n for n, x in TABLE.items() if place.applies(x)]
        assert having, place.add
        assert any(not places.missing(place, name) for name in having), place.add


@pytest.mark.parametrize("name", ["muon", "alice"])
def test_a_name_that_is_taken_out_is_missed(name, monkeypatch):
    """Of each file in turn, with the keywords that stand there."""
    text = places.text
    for place in places.PLACES:
        keys = place.applies(TABLE[name])
        if not keys or place.has is places.documented:
            continue

        def without(file, words=(name, *keys)):
            return functools.reduce(
                lambda x, y: x.replace(y or name, "gone"), words, text(file)
            )

        monkeypatch.setattr(places, "text", without)
        places.names_in.cache_clear()
        assert places.missing(place, name) == [key or name for key in keys], place.add
    places.names_in.cache_clear()
