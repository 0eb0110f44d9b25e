"""Train a LLaMA on real text, and compare optimizers on it.

`model` is the network and `data` the text. `optimizers` lists the methods, `options`
reads options in their names; `poet` and `lora` are the methods that train something
other than the weights. `step` is one update, `train` one run that can be killed and
resumed, `compare` several runs under one protocol, `report` and `plot` print and draw
the results, and `cli` has the two commands. `monitor` records what each layer of a run
does; `examples.study report` makes one page of runs or of a comparison.

A run has a directory of its own, which `directory` locks. `checkpoint` saves and checks
its state: it refuses states that are not finite, and skips damaged checkpoints.
`interrupt` handles Ctrl-C and SIGTERM. Bad input and failing disks end in one line
(`errors`).
"""
