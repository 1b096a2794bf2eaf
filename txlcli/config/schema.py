"""Describes every setting, in words and as a JSON Schema, from the dataclasses that check recipes."""

import ast
import dataclasses
import functools
import inspect
import math
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txlcli.config.model_settings import MODELS
from txlcli.config.ranges import FieldType, Range
from txlcli.config.recipe import OFF_WORDS, SECTIONS, is_required

JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One setting of a recipe."""

    section: str
    name: str
    architectures: tuple[str, ...]
    """Values of model.arch with this setting, if it is not a setting of all; empty otherwise."""
    type: FieldType
    required: bool
    default: Any
    description: str

    @property
    def full_name(self) -> str:
        """Name for --set."""
        return f"{self.section}.{self.name}"

    @property
    def values(self) -> str:
        """Values that are accepted, as a phrase."""
        values = ", ".join(self.type.words) or self.type.name
        if self.type.words and self.type.is_list:
            values = f"{self.type.name} out of {values}"
        if self.type.range is not None:
            values += f", {self.type.range.description}"
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

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the value."""
        type_ = self.type
        value: dict[str, Any] = {"enum": list(type_.words)} if type_.words else {"type": JSON_TYPES[type_.item]}
        if type_.is_list and type_.words:  # a single word is accepted as a list of one
            value = {"anyOf": [value, {"type": "array", "items": value, "uniqueItems": True}]}
        elif type_.is_list:
            value = {"type": "array", "items": value}
        if type_.range is not None:
            value |= _limits(type_.range, is_whole=type_.item is int)
        if type_.can_be_off:
            value = {"anyOf": [value, {"enum": list(OFF_WORDS)}]}
        schema = {"description": self.description, **value}
        if not self.required and self.default is not None:
            schema["default"] = list(self.default) if isinstance(self.default, tuple) else self.default
        return schema


def _limits(range_: Range, *, is_whole: bool) -> dict[str, float]:
    """Return the limits of a range as keywords of JSON Schema."""
    limits = {
        "minimum": range_.least,
        "exclusiveMinimum": range_.above,
        "maximum": range_.largest(is_whole=is_whole),
        "exclusiveMaximum": range_.below,
    }
    return {keyword: limit for keyword, limit in limits.items() if math.isfinite(limit)}


def keys(section: str) -> list[Key]:
    """Return the settings of a section, in the order of the dataclasses; a setting of [model] may differ by arch."""
    classes = {"": SECTIONS[section]} if section != "model" else MODELS
    architectures: dict[Key, list[str]] = {}
    for name, cls in classes.items():
        for key in _keys_of(section, typing.cast(type, cls)):
            architectures.setdefault(key, []).append(name)
    return [
        dataclasses.replace(key, architectures=() if names == list(classes) else tuple(names))
        for key, names in architectures.items()
    ]


def _keys_of(section: str, cls: type) -> Iterator[Key]:
    descriptions = _descriptions(cls)
    for field in dataclasses.fields(cls):
        yield Key(
            section=section,
            name=field.name,
            architectures=(),
            type=FieldType.of(field.type),
            required=is_required(field),
            default=None if is_required(field) else field.default,
            description=descriptions[field.name],
        )


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


def _schema_of_all(same: list[Key]) -> dict[str, Any]:
    """Return the JSON Schema of keys of one name, which may differ by arch: one schema, or any of several."""
    schemas = [key.json_schema() for key in same]
    described = ("description", "default")
    limits = [{word: value for word, value in schema.items() if word not in described} for schema in schemas]
    if all(limit == limits[0] for limit in limits):
        return schemas[0]
    description = " ".join(f"With arch = {' or '.join(key.architectures)}: {key.description}" for key in same)
    return {"description": description, "anyOf": limits}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 7) of a recipe, with which editors complete and check keys."""
    sections = {}
    for section in SECTIONS:
        of_section = keys(section)
        named = {key.name: [other for other in of_section if other.name == key.name] for key in of_section}
        properties = {name: _schema_of_all(same) for name, same in named.items()}
        sections[section] = {
            "type": "object",
            "description": str(inspect.getdoc(SECTIONS[section])).splitlines()[0],
            "properties": properties,
            "required": [key.name for key in of_section if key.required and not key.architectures],
            "additionalProperties": False,
        }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "txl recipe",
        "type": "object",
        "properties": sections,
        "required": ["corpus", "model", "train", "eval"],
        "additionalProperties": False,
    }
