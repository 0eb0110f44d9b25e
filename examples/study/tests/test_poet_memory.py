"""Memory of a training step under POET, by the compiler."""

import pytest

from examples.study.benchmarks import poet_memory


@pytest.mark.slow
def test_memory_of_a_step_is_less_where_layers_are_made_in_the_scan(capsys):
    rows = poet_memory.main(["--size", "tiny", "--block", "16"])
    adamw, by_optax, before, inside, alone, _ = rows.values()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)
    # Three times what is trained, and W_0; counts and permutations beside.
    layers = sum(2 * m * n for m, n in [(96, 96)] * 2 + [(96, 48)] * 2) * 4
    layers += sum(2 * m * n for m, n in [(96, 256)] * 3) * 4
    assert adamw.arguments == pytest.approx(3 * adamw.trainable, rel=0.02)
    assert inside.arguments == pytest.approx(3 * inside.trainable + layers, rel=0.05)
    assert inside.arguments == before.arguments == alone.arguments
    assert alone.temporary < inside.temporary < before.temporary
    assert by_optax.trainable == adamw.trainable
