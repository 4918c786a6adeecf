"""Sentences that every machine with Python has: what its standard library says of itself."""

from __future__ import annotations

import ast
import pathlib
import sysconfig

# Tests, generated tables that repeat one sentence, and what distributions often leave out.
LEFT_OUT = {
    "distutils",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
}


def first_lines(count: int) -> list[str]:
    """The first docstring lines of ``count`` modules, those nearest the library's root first.

    Sources are parsed, nothing is imported. The same on every run with one version of Python.

    Raises:
      ValueError: the library has fewer modules with a docstring of three words or more.
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    lines: list[str] = []
    for file in sorted(root.rglob("*.py"), key=lambda f: (len(f.parts), f)):
        if LEFT_OUT & set(file.relative_to(root).parts):
            continue
        line = _first_line(file)
        if len(line.split()) >= 3 and line not in lines:
            lines.append(line)
        if len(lines) == count:
            return lines
    raise ValueError(f"count: expected at most {len(lines)} for the modules in {root}, got {count}")


def _first_line(file: pathlib.Path) -> str:
    try:
        docstring = ast.get_docstring(ast.parse(file.read_bytes()))
    except (SyntaxError, ValueError):
        return ""
    return (docstring or "").strip().partition("\n")[0].strip()
