"""``python -m producer`` is ``eaglefeed produce``."""

import sys

from eaglefeed.cli import main

if __name__ == "__main__":
    sys.exit(main(["produce", *sys.argv[1:]]))
