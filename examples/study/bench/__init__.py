"""One controlled comparison of every method: tasks, protocol, results.

    python -m examples.study bench run shakespeare  # goes on where it was stopped
    python -m examples.study bench table --write    # into the pages
    python -m examples.study bench plot shakespeare
    python -m examples.study bench time
    python -m examples.study bench spectra

`tasks` are models with their data, `methods` the optimizers in two settings, `studies`
the rows of each table. `search` is the protocol: which learning rates and seeds a
method gets. `runs` trains, `workers` does so on all cores, and `results` keeps what is
finished. `statistics`, `table` and `plot` read it. `times` and `spectra` measure more
of each method: its time, and its updates.
"""
