"""The exception that the command line prints as one line, with exit code 2."""

import os
import re


class UserError(Exception):
    """A mistake in the input, or a bad disk; the message says what to do about it."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of TensorStore's, what the system said."""
    text = str(error).strip()
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    return (text.splitlines() or [type(error).__name__])[0]
