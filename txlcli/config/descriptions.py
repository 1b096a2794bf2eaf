"""Descriptions of settings: the text below each field of a section, read from the syntax tree of the class."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from typing import Any


def descriptions(section: type[Any]) -> dict[str, str]:
    """Return the description of each field of a section, those of its base classes included.

    Raises:
        ValueError: a field has no description, or the class has no source, as in an interactive session.
    """
    texts: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if dataclasses.is_dataclass(cls):
            texts.update(_own_descriptions(cls))
    for field in dataclasses.fields(section):
        if field.name not in texts:
            raise ValueError(f"{section.__name__}.{field.name} has no description; write a sentence below the field")
    return texts


def _own_descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the descriptions of the fields that a class itself declares."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError) as error:  # a TypeError if its module has no file
        raise ValueError(f"{cls.__name__} has no source to read descriptions from; define it in a file") from error
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef), definition
    texts: dict[str, str] = {}
    for statement, below in itertools.pairwise(definition.body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr)):
            continue
        if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            texts[ast.unparse(statement.target)] = " ".join(below.value.value.split())
    return texts
