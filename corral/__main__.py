"""`python -m corral` is the command `corral`, also where that is not on the path."""

from corral.cli.start import main

if __name__ == "__main__":
    main()
