"""Describes every setting in words, from the dataclasses that check recipes."""

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from dataclasses import dataclass
from typing import Any

from txlcli.config.model_settings import MODELS
from txlcli.config.ranges import FieldType
from txlcli.config.recipe import SECTIONS

REQUIRED, NO_VALUE = "required", "-"


@dataclass(frozen=True, kw_only=True)
class Key:
    """One setting of a recipe, in words."""

    setting: str
    """Name with the section, as in an override."""
    values: str
    """Values that are accepted."""
    default: str
    """Default as in a recipe; REQUIRED if a recipe must have the key, NO_VALUE if the setting is off without it."""
    arch: tuple[str, ...] | None = None
    """Values of model.arch with this setting, if it is not a setting of all."""
    description: str


def keys(section: str) -> list[Key]:
    """Return the settings of a section, in the order of the dataclasses; a setting of [model] may differ by arch."""
    classes: dict[str, Any] = {"": SECTIONS[section]} if section != "model" else dict(MODELS)
    architectures: dict[Key, list[str]] = {}
    for arch, cls in classes.items():
        texts = _descriptions(cls)
        for field in dataclasses.fields(cls):
            key = Key(
                setting=f"{section}.{field.name}",
                values=str(FieldType.of(field.type)),
                default=_in_words(field.default),
                description=texts[field.name],
            )
            architectures.setdefault(key, []).append(arch)
    return [
        dataclasses.replace(key, arch=None if names == list(classes) else tuple(names))
        for key, names in architectures.items()
    ]


def _in_words(default: Any) -> str:
    if default in (dataclasses.MISSING, None):
        return REQUIRED if default is not None else NO_VALUE
    if isinstance(default, tuple):
        return str(list(default))
    return f"{default:g}" if isinstance(default, float) else str(default).lower()


@functools.cache
def _descriptions(cls: type) -> dict[str, str]:
    """Return the text below each field of a dataclass and of its base classes."""
    descriptions: dict[str, str] = {}
    for part in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = ast.literal_eval(typing.cast(ast.Expr, below).value)
                descriptions[field.target.id] = " ".join(text.split())
    return descriptions
