"""Train a LLaMA on real text, and compare optimizers on it.

`model` is the network, `data` the text, `optimizers` the registry, `step` one
update, `train` one run that survives being killed, `compare` several runs under one
protocol, `report` what is printed and drawn of them, `cli` the two commands.
"""
