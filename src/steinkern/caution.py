"""What is said aloud about a run whose result is not to be trusted as it is."""


class SteinWarning(UserWarning):
    """A run ended, but something about it says that its particles are not what they should be; with the advice."""
