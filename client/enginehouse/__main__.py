"""`python -m enginehouse` is the command line."""

from enginehouse.cli import main

if __name__ == "__main__":
    main()
