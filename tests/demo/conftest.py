"""The demo's modules import one another as scripts do, from their own folder."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "minilm"))
