"""The one exception that a user is meant to read: what was wrong, what was expected, what to do."""


class ReproError(ValueError):
    """Bad input, in one line. The command line prints it and exits with status 2."""
