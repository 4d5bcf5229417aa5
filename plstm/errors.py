"""The one exception that means: the user can fix this, and the message says how."""


class UserError(Exception):
    """Bad input or a bad environment; its text is one line that names the key or path and what to do.

    The command-line entries print it without a traceback and exit with status 2.
    """
