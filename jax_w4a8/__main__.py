"""``python -m jax_w4a8``."""

import sys

from jax_w4a8.cli import main

sys.exit(main(sys.argv[1:]))
