"""What can go wrong, by meaning. Every message is one line: what was wrong, what was found, what would be right."""


class HoldfastError(Exception):
    """Anything that Holdfast itself reports."""


class Invalid(HoldfastError):
    """What somebody wrote or typed is wrong; nothing was done. Exit code 2."""


class Infeasible(HoldfastError):
    """The question is well put but has no answer within the limits given. Exit code 1."""


class Unrecoverable(HoldfastError):
    """What is needed to go on is gone or damaged; the message says what was tried. Exit code 1."""
