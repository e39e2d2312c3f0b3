"""`python -m millstream`: the command."""

import sys

from millstream._command import main

sys.exit(main())
