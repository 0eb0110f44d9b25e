"""Speed, memory and programs; each module is a command of `examples.study`."""
