"""Tables of the five papers that need no training, next to what this library gives.

    python -m examples.study paper-tables [paper ...]

Numbers of parameters, optimizer memory, growth of costs, and sums and products of the
papers' own numbers. Ours are counted from the shapes of real parameters and states. A
verdict is "exact", "holds" (of a bound), "within rounding" (the papers round and cut),
or "differs" and why.
"""
