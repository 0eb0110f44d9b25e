"""Worked examples of `optax_matrix`; run them from the root of the repository."""
