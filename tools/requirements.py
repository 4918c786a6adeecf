"""Prints requirements that pyproject.toml states, one a line, for ``pip install -r /dev/stdin``.

Usage: ``python tools/requirements.py build|run|EXTRA ...``, where ``build`` is what building needs
and ``run`` what the package itself needs. An extra that names the project's own extras brings them.
"""

import pathlib
import re
import sys
import tomllib


def requirements(pyproject: dict, group: str) -> list[str]:
    """The requirements of one group, the project's own extras replaced by what they hold."""
    project = pyproject["project"]
    if group == "build":
        # Headers of the jaxlib that the environment has anyway serve as well as the pinned one's.
        requires = pyproject["build-system"]["requires"]
        return [line for line in requires if not line.startswith("jaxlib")]
    if group == "run":
        return project["dependencies"]
    own = re.compile(rf"{re.escape(project['name'])}\[(.+)\]")
    found = []
    for requirement in project["optional-dependencies"][group]:
        extras = own.fullmatch(requirement)
        if extras is None:
            found.append(requirement)
        else:
            for extra in extras[1].split(","):
                found += requirements(pyproject, extra.strip())
    return found


def main(groups: list[str]) -> None:
    """Prints the union of the groups."""
    file = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    pyproject = tomllib.loads(file.read_text())
    known = {"build", "run", *pyproject["project"]["optional-dependencies"]}
    if unknown := set(groups) - known:
        sys.exit(f"unknown group {sorted(unknown)}: pyproject.toml has {sorted(known)}")
    lines = {line for group in groups for line in requirements(pyproject, group)}
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main(sys.argv[1:])
