"""Several optimizers on the LLaMA of `examples.pretrain`, under one protocol.

    python -m examples.study compare --size tiny --optimizers muon@8e-3,muoneq@8e-3

`comparison` has the runs, `protocol` chooses learning rates and counts the steps to
AdamW's loss, `table` prints the result, `plot` draws it. `examples.study report` makes
the page.
"""
