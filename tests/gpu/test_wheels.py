"""The list of packages for a machine without a network is complete: for what is imported, and for what that needs."""

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.gpu.wheels import EVERY_PART, NEEDED, installed

ROOT = Path(__file__).parents[2]
OWN = ("txlcli", "tests", "corpora")
ENTRIES = {
    EVERY_PART: ("__main__", "stage", "rows", "warm", "parallel_tests", "wheels"),
    "tests": (*(file.stem for file in Path(__file__).parent.glob("test_cuda_*.py")), "pytest_log"),
    "peer": ("tests.benchmarks.peer", "tests.benchmarks.rows"),
    "ptb": ("ptb",),
}
"""Modules of each part, of `tests.gpu` unless their name has a package."""


def name_of(requirement):
    """Return the name of a distribution in one spelling."""
    return re.sub(r"[-_.]+", "-", Requirement(requirement).name).lower()


def names_of(part):
    """Return the names of the listed distributions of a part."""
    return {name_of(requirement) for requirement in (*NEEDED[EVERY_PART], *NEEDED[part])}


def needs(name):
    """Return the names of the distributions that one needs; none if it is not installed."""
    try:
        requirements = list(map(Requirement, metadata.requires(name) or []))
    except metadata.PackageNotFoundError:
        return set()
    return {name_of(need.name) for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})}


def with_needs(names):
    """Return names of distributions, and of all that they need."""
    found, new = set(), set(names)
    while new:
        found |= new
        new = set().union(*map(needs, new)) - found
    return found


def file_of(module):
    """Return the file of a module or a package of the project; None if there is none."""
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def imports(file):
    """Yield the names of the modules that are imported when a file is, and names in them."""
    statements = list(ast.parse(file.read_text(encoding="utf-8")).body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            package = [*file.parent.relative_to(ROOT).parts] if statement.level else []
            module = ".".join([*package, *filter(None, [statement.module])])
            yield from (f"{module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.If | ast.Try | ast.With) and "TYPE_CHECKING" not in ast.unparse(statement):
            statements += statement.body


def imported_packages(modules):
    """Return the packages of others that modules of the project import, directly or through others of the project."""
    found, seen, new = set(), set(), list(modules)
    while new:
        module = new.pop()
        if module.partition(".")[0] not in OWN:
            found.add(module.partition(".")[0])
            continue
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            file = file_of(name)
            if file is not None and name not in seen:
                seen.add(name)
                new += imports(file)
    return found - sys.stdlib_module_names


@pytest.mark.parametrize("part", NEEDED)
def test_every_package_that_a_part_imports_is_listed(part):
    modules = [entry if "." in entry else f"tests.gpu.{entry}" for entry in ENTRIES[part]]
    if part == "tests":
        modules.append("tests.conftest")
    owners = metadata.packages_distributions()
    listed = names_of(part)
    for package in imported_packages(modules):
        assert {name_of(owner) for owner in owners.get(package, [package])} & listed, package


@pytest.mark.parametrize("part", NEEDED)
def test_what_a_listed_package_needs_is_listed_or_comes_with_pytorch(part):
    listed = names_of(part)
    assert with_needs(listed - {"torch"}) <= listed | with_needs({"torch"})


def test_requirements_that_are_satisfied_are_told_from_others():
    assert installed("pytest>=8")[1]
    assert not installed("pytest<8")[1]
    assert installed("no-such-package") == (None, False)
