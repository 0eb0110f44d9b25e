"""Which axes of a parameter are inputs and outputs, read from how a model uses it.

`views` says where the axes of a parameter are in a value. `trace` goes through the
jaxpr of a function; `elementwise`, `moves`, `lookups`, `products` and `control` follow
the views through its primitives, and record how each parameter meets data. `sides`
and `verdicts` tell from these uses what each parameter is. `models` takes a model
apart, `reading` reads it, and `answers` joins what its use says with axis names, types
of layers and names of leaves. `question` asks what stays open. `rule` has `by_use`.
"""
