"""The table of plans of large models, whose figures the guide to sharding has."""

import pytest

from examples.study.benchmarks import plans
from examples.study.benchmarks._trees import MESHES, MODELS


def test_the_line_that_the_guide_has(capsys):
    plans.main(["--models", "Llama 8B", "--devices", "256"])
    title, header, line = capsys.readouterr().out.splitlines()
    assert title == "Llama 8B"
    found = dict(zip(header.split(), line.split(maxsplit=9), strict=True))
    assert found["groups"] == "5"
    assert (found["apart"], found["sent"]) == ("590", "223")
    assert (found["state"], found["pooled"], found["even"]) == ("623", "255", "135")
    assert found["collectives"] == "10 -> 2"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama 8B", 8.0),
        ("Llama 70B", 70.6),
        ("ViT-22B", 21.8),
        ("Qwen3 30B-A3B", 30.5),
        ("DeepSeek-V3", 671),
    ],
)
def test_models_have_their_sizes_and_fit_their_meshes(name, billions):
    for devices in MESHES:
        params = MODELS[name].params(devices).values()
        shards = [x.sharding.shard_shape(x.shape) for x in params]
        assert all(map(all, shards))
    found = sum(x.size for x in params) / 1e9
    assert found == pytest.approx(billions, rel=0.01)
