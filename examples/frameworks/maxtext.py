"""MaxText: its pre-training loop, Grain pipeline, scanned layers, Orbax checkpoints.

``python -m examples.frameworks.maxtext owners FOLDER`` trains with `om.owners`; this is
not part of the table.
"""

import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

import optax_matrix as om
from examples.frameworks import _trial, losses as text
from optax_matrix.adapters.maxtext import axes_by_name, by_use, use

VOCABULARY, BATCH, LENGTH = 64, 8, 32

# Layers are scanned on axis 1.
TABLE = {
    "decoder/decoder_norm/scale": "other",
    "decoder/layers/mlp/wi_0/kernel": "0 -> 2",
    "decoder/layers/mlp/wi_1/kernel": "0 -> 2",
    "decoder/layers/mlp/wo/kernel": "0 -> 2",
    "decoder/layers/post_self_attention_layer_norm/scale": "other",
    "decoder/layers/pre_self_attention_layer_norm/scale": "other",
    "decoder/layers/self_attention/key/kernel": "0 -> 2, 3",
    "decoder/layers/self_attention/out/kernel": "0, 2 -> 3",
    "decoder/layers/self_attention/query/kernel": "0 -> 2, 3",
    "decoder/layers/self_attention/value/kernel": "0 -> 2, 3",
    "decoder/logits_dense/kernel": "other",
    "token_embedder/embedding": "other",
}

MODEL = {
    "decoder_block": "llama2",
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 4,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_target_length": LENGTH,
    "dtype": "float32",
    "attention": "dot_product",
    "remat_policy": "minimal",
}
# Training from files of this machine alone.
LOCAL = {
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "dataset_type": "grain",
    "grain_file_type": "arrayrecord",
    "grain_worker_count": 0,
    "grain_num_threads": 1,
    "tokenize_train_data": False,
    "enable_data_shuffling": False,
    "packing": False,
    "enable_tensorboard": False,
    "enable_goodput_recording": False,
    "log_config": False,
    "gradient_clipping_threshold": 1.0,
    "muon_weight_decay": 0.1,
}
SPLIT = {"ici_fsdp_parallelism": 4, "ici_tensor_parallelism": 2}


def train(
    method: str,
    steps: int,
    folder: pathlib.Path | None,
    placement: Any = None,
    split: dict[str, int] = SPLIT,
) -> _trial.Run:
    """MaxText's own loop; a checkpoint holds the Grain iterator as well."""
    told = []

    def recipe(rate, *, dimension_numbers, **options):
        told.append(dimension_numbers)
        return _trial.recipe(
            method, rate, dimension_numbers=dimension_numbers, **options
        )

    batches = (
        _trial.tokens(step, BATCH, LENGTH, VOCABULARY) for step in range(_trial.STEPS)
    )
    changes = {
        **split,
        "learning_rate": _trial.METHODS[method],
        "learning_rate_schedule_steps": _trial.STEPS,
        "per_device_batch_size": BATCH / len(jax.devices()),
        "enable_checkpointing": folder is not None,
        "async_checkpointing": False,
        "save_checkpoint_on_start": False,
    }
    if method != "adamw":
        use(recipe, placement=placement)
        changes["opt_type"] = "muon"
    state, found = _run(steps, batches, folder, changes)
    params = {}
    if told:
        from flax import nnx

        params = nnx.to_pure_dict(nnx.split(state.model, nnx.Param, ...)[1])
    return _trial.Run(found, state.optimizer.opt_state, params, *told[-1:])


def losses(method: str, rate: float, seed: int, steps: int) -> list[float]:
    """The loss of each step on `text`, on one device."""
    if method != "adamw":
        use(getattr(om, method))
    changes = {
        "base_emb_dim": text.WIDTH,
        "base_mlp_dim": 4 * text.WIDTH,
        "base_num_decoder_layers": text.LAYERS,
        "base_num_query_heads": text.HEADS,
        "base_num_kv_heads": text.HEADS,
        "head_dim": text.WIDTH // text.HEADS,
        "vocab_size": text.VOCABULARY,
        "max_target_length": text.LENGTH,
        "per_device_batch_size": text.BATCH,
        "learning_rate": rate,
        "init_weights_seed": seed,
        "enable_checkpointing": False,
        "abort_on_nan_loss": False,
        "abort_on_inf_loss": False,
        "opt_type": "adamw" if method == "adamw" else "muon",
    }
    batches = (text.text(seed, step)[:, : text.LENGTH] for step in range(steps))
    return _run(steps, batches, None, changes)[1]


def _run(
    steps: int,
    batches: Iterable[np.ndarray],
    folder: pathlib.Path | None,
    changes: dict[str, Any],
) -> tuple[Any, list[float]]:
    """The state and the losses of a run of `maxtext.trainers.pre_train.train`."""
    from maxtext.trainers.pre_train import train as trainer
    from maxtext.utils.globals import MAXTEXT_PKG_DIR

    with tempfile.TemporaryDirectory() as scratch:
        records, metrics = (pathlib.Path(scratch) / n for n in ("records", "metrics"))
        _write(records, batches)
        config = {
            **MODEL,
            **LOCAL,
            **changes,
            "run_name": "trial",
            "base_output_directory": str(folder or scratch),
            "steps": steps,
            "grain_train_files": str(records),
            "metrics_file": str(metrics),
            # Only its padding is used: the tokens are in the records.
            "tokenizer_path": f"{MAXTEXT_PKG_DIR}/assets/tokenizers/tokenizer.llama2",
        }
        config, recorder = trainer.initialize(_words(config))
        state = trainer.train_loop(config, recorder)
        lines = metrics.read_text().splitlines()
    return state, [json.loads(line)["learning/loss"] for line in lines]


def _words(config: dict[str, Any]) -> list[str]:
    """A configuration as the command line has it."""
    from maxtext.utils.globals import MAXTEXT_PKG_DIR

    base = f"{MAXTEXT_PKG_DIR}/configs/base.yml"
    return ["", base, *(f"{name}={value}" for name, value in config.items())]


def used(changes: dict[str, Any] | None = None) -> _trial.Used:
    """The abstract model by its call; on its own, the numbers of MaxText's Muon."""
    from flax import nnx
    from maxtext.configs import pyconfig
    from maxtext.utils import maxtext_utils, model_creation_utils, muon_utils

    given = {"per_device_batch_size": 1, "run_name": "trial", **(changes or {})}
    local = {**LOCAL, "dataset_type": "synthetic", "base_output_directory": "unused"}
    config = pyconfig.initialize(_words({**MODEL, **local, **given}))
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    model = model_creation_utils.create_nnx_abstract_model(config, mesh)[1]
    numbers = muon_utils.get_muon_weight_dimension_numbers(model, config)
    params = nnx.to_pure_dict(nnx.split(model, nnx.Param, ...)[1])
    own = axes_by_name(numbers, model)
    return _trial.Used(by_use(model, config, mesh), params, own)


def _write(file: pathlib.Path, batches: Iterable[np.ndarray]) -> None:
    """The rows of the batches as an ArrayRecord of examples, in their order."""
    from array_record.python.array_record_module import ArrayRecordWriter
    from maxtext.input_pipeline.protos import example_pb2

    writer = ArrayRecordWriter(str(file), "group_size:1")
    for batch in batches:
        for row in batch:
            example = example_pb2.Example()
            feature = example.features.feature["text"]
            feature.int64_list.value.extend(map(int, row))
            writer.write(example.SerializeToString())
    writer.close()


def owners(folder: pathlib.Path) -> None:
    """Trains with whole matrices on eight devices, and goes on from a checkpoint."""
    split = {"ici_fsdp_parallelism": 8}
    run = lambda steps, kept: train("muoneq", steps, kept, om.owners("fsdp"), split)
    whole = run(_trial.STEPS, None)
    parts = [run(steps, folder).losses for steps in (_trial.STOP, _trial.STEPS)]
    adamw = train("adamw", 1, None, split=split)
    own, usual = (_trial.bytes_per_device(x.state) for x in (whole, adamw))
    equal = parts[0] + parts[1] == whole.losses
    print(f"owners: loss {whole.losses[0]:.3f} to {whole.losses[-1]:.3f},", end=" ")
    print("equal after the restart," if equal else "OTHERWISE AFTER IT,", end=" ")
    print(f"state {own / 1e3:.1f} kB, {own / usual:.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "owners":
        owners(pathlib.Path(sys.argv[2]))
    else:
        _trial.main(train, TABLE, used)
