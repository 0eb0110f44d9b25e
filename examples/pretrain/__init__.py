"""Train a LLaMA on real text under any method of the library.

    python -m examples.pretrain --optimizer muoneq:mode=col --size 60m --data c4

`config` and `model` are the network, `data` the text (`streaming`, if it is larger than
the memory). `optimizers` lists the methods, `options` reads options in their names;
`factors` has those that train something other than the weights. `step` is one update,
`train` one run that can be killed and resumed, `cli` its command line; `monitor`
records what each layer of a run does.

A run has a `directory` of its own, which it locks. `checkpoint` saves and checks its
state: it refuses states that are not finite, and skips damaged checkpoints. Which
weights are matrices is read from the model, and kept in `matrices.json` beside it, so
that a resumed run has the same. `errors`
has what ends a run early: bad input and failing disks in one line, Ctrl-C and SIGTERM
after a checkpoint.

`python -m examples.study compare` compares several methods on this model, and `python
-m examples.study report` makes one page of runs.
"""
