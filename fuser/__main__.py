"""`python -m fuser`: the same as the command `fuserc`."""

import sys

from fuser.cli import main

if __name__ == "__main__":
    sys.exit(main())
