"""Which optimizer trains best from rewards?

    python -m examples.study reinforce run       # goes on where it was stopped
    python -m examples.study reinforce table

There are two tasks. A small language model, the `base`, learns `sums` by `grpo`; a
policy learns to swing up a `pendulum` by `ppo`. `formulas` has what both share,
`methods` the optimizers, `protocol` the runs; `runs` trains, `table` and `plot` show
what was found. The page is ``examples/study/pages/reinforce.md``; its protocol was
committed before the first run. The form of the file is that of `bench`.
"""
