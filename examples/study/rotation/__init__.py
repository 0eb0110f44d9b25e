"""ARO's study of rotations: `cli` trains under every policy and compares.

`mnist` loads the data, `training` trains the MLP under a rotation policy and measures
its alignment score, `objective` measures what the rotations increase on random and on
real momenta, and `report` makes the tables and the figure.
"""
