"""Real frameworks: our optimizers in their trainers, shardings and checkpoints.

``python -m examples.frameworks [name ...]`` (``make test-frameworks``) gives each
framework an environment of its own, installs it beside this library, and runs two
processes on eight simulated devices:

1. *first*: AdamW, `muoneq`, `soap`, `aro`, `alice` and `poet` train for 30 steps, and
   again for 15 steps with a checkpoint of the framework at the end;
2. *resumed*: a new process goes on from each checkpoint to step 30.

The two must end in the same losses; each leaf must be in the group that the written
table names; and the state's bytes per device stand beside those of AdamW.

========================  ==========================================================
`__main__`                environments, processes, the table
`_trial`                  the questions, asked inside an environment
`_environments`           what each framework needs installed
one module per framework  its smallest configuration, and the table of its leaves
========================  ==========================================================

A new framework is one module with a function ``train(method, steps, folder)`` and a
table of groups, and one entry in `_environments`.
"""
