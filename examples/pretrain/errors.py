"""The exception that the command line prints as one line, with exit code 2."""


class UserError(Exception):
    """A mistake in the input; the message says how to correct it."""
