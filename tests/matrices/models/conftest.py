"""The scripts here need packages that the tests do without."""

collect_ignore = ["installed.py", "held_out.py"]
