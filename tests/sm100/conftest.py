"""Which of these tests there is something to run on."""

import importlib.util

# What calls the compiled kernels' handlers needs the extension; `make cuda` builds it.
collect_ignore = [] if importlib.util.find_spec("jax_w4a8._sm100") else ["cuda"]
