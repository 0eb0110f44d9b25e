"""Eight CPU devices, tiers and shared fixtures: see `_setup`."""

import _setup


def pytest_configure(config):
    """Registers the plugin once, for these tests and those of the study."""
    if not config.pluginmanager.is_registered(_setup):
        config.pluginmanager.register(_setup)
