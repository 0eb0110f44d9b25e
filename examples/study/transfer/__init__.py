"""Whether what small models show holds for one of 10 million parameters on a GPU.

`protocol` says which runs there are, `corpus` makes the text, `training` runs, and
`table` shows what they found.
"""
