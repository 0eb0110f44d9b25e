"""The parts of `examples.rotation_study`.

`mnist` is the data, `training` the MLP under a rotation policy and its alignment score,
`objective` what a policy maximises, on random and on real momenta, `report` the tables
and the figure.
"""
