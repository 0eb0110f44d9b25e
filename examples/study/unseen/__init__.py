"""Which rule for the learning rate holds on tasks that nobody tuned a method for?

    python -m examples.study unseen run        # goes on where it was stopped
    python -m examples.study unseen table

`models` has six small models that no other study has, `tasks` their data and losses,
`protocol` the runs and the rules, `runs` trains, `table` shows what they found. The
page is ``examples/study/pages/unseen.md``; its protocol was committed before the first
run. The engine and the form of the file are those of `bench`.
"""
