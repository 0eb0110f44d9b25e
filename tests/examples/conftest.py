"""Faults that tests of several examples share."""

import resource

import pytest


@pytest.fixture
def full_disk():
    """Limits the size of every file that this process writes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
