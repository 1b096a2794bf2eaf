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
from txlcli.config.ranges import OFF_WORDS, FieldType
from txlcli.config.recipe import SECTIONS


@dataclass(frozen=True, kw_only=True)
class Key:
    """One setting of a recipe."""

    section: str
    name: str
    architectures: tuple[str, ...] = ()
    """Values of model.arch with this setting, if it is not a setting of all; empty otherwise."""
    type: FieldType
    default: Any
    """Default value; MISSING if a recipe must have the key."""
    description: str

    @property
    def full_name(self) -> str:
        """Name with the section, as in an override."""
        return f"{self.section}.{self.name}"

    @property
    def required(self) -> bool:
        """True if a recipe must have the key."""
        return self.default is dataclasses.MISSING

    @property
    def values(self) -> str:
        """Values that are accepted, as a phrase."""
        values = self.type.name if self.type.range is None else f"{self.type.name}, {self.type.range}"
        return f"{values}, or {OFF_WORDS[0]}" if self.type.can_be_off else values

    @property
    def shown_default(self) -> str:
        """Default as in a recipe; "required" if there is none, "-" if the key is left out."""
        if self.required:
            return "required"
        if self.default is None:
            return "-"
        if isinstance(self.default, tuple):
            return str(list(self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default).lower()


def keys(section: str) -> list[Key]:
    """Return the settings of a section, in the order of the dataclasses; a setting of [model] may differ by arch."""
    classes: dict[str, Any] = {"": SECTIONS[section]} if section != "model" else dict(MODELS)
    architectures: dict[Key, list[str]] = {}
    for name, cls in classes.items():
        texts = _descriptions(cls)
        for field in dataclasses.fields(cls):
            key = Key(
                section=section,
                name=field.name,
                type=FieldType.of(field.type),
                default=field.default,
                description=texts[field.name],
            )
            architectures.setdefault(key, []).append(name)
    return [
        dataclasses.replace(key, architectures=() if names == list(classes) else tuple(names))
        for key, names in architectures.items()
    ]


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
