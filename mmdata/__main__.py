"""`python -m mmdata` is the `mmdata` command."""

from mmdata.cli import main

if __name__ == "__main__":
    main()
