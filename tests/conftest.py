"""Eight CPU devices, tiers and shared fixtures: see `_setup`."""

import _setup


def pytest_addoption(parser):
    """Another option would be read too late."""
    what = "list the fast tests that compile too many programs: see tests/_programs.py"
    parser.addoption("--programs", action="store_true", help=what)
    what = "and write the limits of whole files into tests/programs.json"
    parser.addoption("--write-programs", action="store_true", help=what)


def pytest_configure(config):
    """Registers the plugin once, for these tests and those of the study."""
    if not config.pluginmanager.is_registered(_setup):
        config.pluginmanager.register(_setup)
