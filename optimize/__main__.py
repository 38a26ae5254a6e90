"""`python -m optimize`."""

import sys

from optimize.optimize import main

sys.exit(main())
