"""The comparison with equal budgets: ``examples/study/pages/equal.md`` is its protocol.

    python -m examples.study equal run books         # goes on where it was stopped
    python -m examples.study equal orders            # the papers' orders
    python -m examples.study equal search            # additions to the best methods
    python -m examples.study equal try my_module:make
    python -m examples.study equal table books
    python -m examples.study bench table --write     # into the pages

`space` has the settings that every method tries, `protocol` which runs a row gets from
those that it has had, `methods` the optimizers, `runs` trains, `statistics` and `table`
read the results. `orders` has pairs of methods that papers rank, `search` the rounds of
methods with the additions of `chains`, `gains` the losses that choose among these.
`own` has optimizers of users, which get the budget of all others. The engine, the tasks
and the form of the file are those of `bench`.
"""
