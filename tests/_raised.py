"""Warnings as errors, inside of a test, as pytest has them outside."""

import warnings

import optax_matrix as om


def raise_warnings():
    """Raises every warning but the count of what is read from names."""
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", om.matrices.ReadFromNamesWarning)
    warnings.simplefilter("error", om.matrices.DoubtfulMatrixWarning)
