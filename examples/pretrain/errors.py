"""The one exception that the command line turns into one line and exit code 2."""


class UserError(Exception):
    """A mistake in the input; the message says what to do about it."""
