"""`python -m steinkern` is the command `steinkern`."""

from .cli import main

if __name__ == "__main__":
    main()
