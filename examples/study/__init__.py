"""What is measured with this library: the code that measures, the runs, the pages.

    python -m examples.study --help

`bench` compares all methods under one protocol and `compare` a few of them at once;
`report` makes a page of what either found. `benchmarks` are measurements of speed,
memory and programs, `memory_table`, `portable_table` and `paper_tables` counts that
need no training, `rotation` repeats ARO's study on MNIST. `tpu` has kernels for TPUs
that no device has timed yet. `results` has the runs, `pages` what they say, with tables
that are built from the runs.
"""
