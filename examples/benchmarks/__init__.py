"""The measurements of `examples/RESULTS.md`; each module is a command."""
