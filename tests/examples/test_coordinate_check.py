"""Movement of activations: flat in width in one form of `scale_by_shape`, else not."""

import pytest

from examples import coordinate_check


@pytest.mark.slow
def test_only_the_unclipped_form_is_flat_in_every_layer():
    widths = (32, 128)
    slopes = {
        rule: {k: s for k, (_, s) in coordinate_check.check(rule, widths).items()}
        for rule in ("unclipped", "none", "max")
    }
    assert max(map(abs, slopes["unclipped"].values())) < 0.15
    assert slopes["none"]["input"] < -0.35
    assert slopes["max"]["output"] > 0.5


def test_one_width_has_no_slope(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["coordinate_check", "--widths", "64"])
    with pytest.raises(SystemExit):
        coordinate_check.main()
    assert "--widths must be two or more" in capsys.readouterr().err
