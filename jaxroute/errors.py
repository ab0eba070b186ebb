"""The errors a user can mend."""


class InputError(ValueError):
    """Bad input: the message names the file, the row or key, what was found and what was expected.

    The command line prints the message on one line and exits with status 2.
    """


class UnknownFormatError(InputError):
    """A file that is of no format that is looked for."""
