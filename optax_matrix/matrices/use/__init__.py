"""Which axes of a parameter are inputs and outputs, read from how a model uses it.

`views` says where the axes of a parameter are in a value. `trace` goes through the
jaxpr of a function, and records each of the `uses`: `elementwise`, `reductions`,
`moves`, `lookups`, `products` (of parameters with data; `mixtures` of data with data;
`factors` are the two of either), `convolutions` and `control` follow the views through
its `primitives`. `constants` are values that no input enters, `signals` what layers put
out and read, the residual stream among them. `sides` and `verdicts` tell from these
uses what each parameter is. `models` takes a model apart, `reading` reads it, and
`answers` joins what its use says with axis names, types of layers and names of leaves.
`question` asks what stays open. `rule` has `by_use`.
"""
