"""Reading machine code needs the tools for it: a CUDA toolkit's, or their packages'."""

from tools.kernel_table import TOOLS, find_tool

collect_ignore = [] if all(map(find_tool, TOOLS)) else ["test_machine_code.py"]
