"""Describes every setting, for people and as a JSON Schema, from the dataclasses that check recipes."""

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
from txlcli.config.ranges import Range, item_words_of, plain_options, range_of, words_of
from txlcli.config.recipe import OFF_WORDS, SECTIONS

TYPE_NAMES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    tuple[int, ...]: "list of whole numbers",
    tuple[bool, ...]: "list of true and false",
    tuple[str, ...]: "list of words",
}
JSON_TYPES: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    tuple[int, ...]: {"type": "array", "items": {"type": "integer"}},
    tuple[bool, ...]: {"type": "array", "items": {"type": "boolean"}},
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One setting of a recipe."""

    section: str
    name: str
    architectures: tuple[str, ...]
    """Values of model.arch with this setting, if it is not a setting of all; empty otherwise."""
    type: Any
    """Type of the value; str if it is a word, tuple[str, ...] if it is a list of words."""
    words: tuple[str, ...]
    """Words to choose from; empty if the value has none."""
    can_be_off: bool
    """True if a recipe may say "none"."""
    range: Range | None
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
        values = ", ".join(self.words) or TYPE_NAMES[self.type]
        if self.takes_list_of_words:
            values = f"{TYPE_NAMES[self.type]} out of {values}"
        if self.range is not None:
            values += f", {self.range.description}"
        return f"{values}, or {OFF_WORDS[0]}" if self.can_be_off else values

    @property
    def takes_list_of_words(self) -> bool:
        """True if a recipe may give several of the words."""
        return bool(self.words) and self.type is not str

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
        value: dict[str, Any] = {"enum": list(self.words)} if self.words else dict(JSON_TYPES[self.type])
        if self.takes_list_of_words:  # a single word is accepted as a list of one
            value = {"anyOf": [value, {"type": "array", "items": value, "uniqueItems": True}]}
        if self.range is not None:
            value |= _limits(self.range, is_whole=self.type is int)
        if self.can_be_off:
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
    types = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        type_ = types[field.name]
        option = next(option for option in plain_options(type_) if option is not type(None))
        words, item_words = words_of(option), item_words_of(option)
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        yield Key(
            section=section,
            name=field.name,
            architectures=(),
            type=str if words else tuple[str, ...] if item_words else option,
            words=words or item_words or (),
            can_be_off=type(None) in plain_options(type_),
            range=range_of(type_),
            required=required,
            default=None if required else field.default,
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
    """Return the JSON Schema of keys of one name, which may differ by arch: that of the first, or any of them."""
    schemas = [key.json_schema() for key in same]
    limits = [{word: value for word, value in one.items() if word not in ("description", "default")} for one in schemas]
    if all(one == limits[0] for one in limits):
        return schemas[0]
    described = " ".join(f"With arch = {' or '.join(key.architectures)}: {key.description}" for key in same)
    return {"description": described, "anyOf": limits}


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
