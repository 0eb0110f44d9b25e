"""Which optimizer tunes a trained model to other data, and does the first one matter?

    python -m examples.study posttrain run       # goes on where it was stopped
    python -m examples.study posttrain table

`changes` has the tasks and what they change to, `bases` the models that are tuned,
`protocol` the runs, `methods` the optimizers, `runs` trains, `table` shows what they
found. The page is ``examples/study/pages/posttrain.md``; its protocol was committed
before the first run. The engine and the tasks are those of `bench`, and the settings of
pretraining those of `equal`.
"""
