"""Markdown of the settings: the fields of the dataclasses in txlcli/config, with the sentence below each."""

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

from txlcli.config import model_settings, settings
from txlcli.config.ranges import words_of

SECTIONS: dict[str, tuple[type, ...]] = {
    "corpus": (settings.CorpusSettings,),
    "model": (model_settings.ModelSettings, model_settings.TransformerSettings, model_settings.RnnSettings),
    "train": (settings.TrainSettings,),
    "eval": (settings.EvalSettings,),
    "log": (settings.LogSettings,),
    "published": (settings.PublishedSettings,),
}
TYPE_NAMES = {int: "integer", float: "number", str: "text", bool: "true or false"}


def lines() -> Iterator[str]:
    """Yield the Markdown of all sections.

    Raises:
        LookupError: a class or field has no description.
    """
    for section, classes in SECTIONS.items():
        yield f"## [{section}]\n"
        for cls in classes:
            summary = inspect.getdoc(cls)
            if not summary or summary.startswith(f"{cls.__name__}("):  # what dataclass writes by itself
                raise LookupError(f"{cls.__name__} has no docstring")
            yield _summary(summary.splitlines()[0]) + "\n"
            descriptions = field_descriptions(cls)
            for field in dataclasses.fields(cls):
                if field.name in descriptions:
                    yield from _entry(section, cls, field, descriptions[field.name])


def field_descriptions(cls: type) -> dict[str, str]:
    """Return the text below each field that the class itself defines, in the order of the source.

    Raises:
        LookupError: a field has no text.
    """
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
            continue
        assert isinstance(node.target, ast.Name)
        text = following.value if isinstance(following, ast.Expr) else None
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
            raise LookupError(f"{cls.__name__}.{node.target.id} has no sentence below it")
        found[node.target.id] = " ".join(text.value.split())
    return found


def _entry(section: str, cls: type, field: dataclasses.Field[Any], description: str) -> Iterator[str]:
    name = f"{section}.{field.name}"
    anchor = f"{cls.__name__}-{field.name}" if cls is model_settings.RnnSettings else name.replace(".", "-")
    yield f"[`{name}`]{{#{anchor}}}"
    yield f": {describe_type(field.type)}, {_default(field)}\n"
    yield f"  {_escaped(description)}\n"


def describe_type(type_: Any) -> str:
    """Return a field's type in words: those that it accepts, or the kind of value."""
    words = words_of(type_)
    if words:
        return ", ".join(f'`"{word}"`' for word in words)
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin in (types.UnionType, typing.Union):
        return " or ".join('`"none"`' if part is types.NoneType else describe_type(part) for part in arguments)
    if origin is tuple:
        return f"list ({describe_type(arguments[0])})"
    return TYPE_NAMES[type_]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    value = field.default
    if value is None:
        shown = "none"
    elif isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, tuple):
        shown = str(list(value))
    else:
        shown = f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"default `{shown}`"


def _summary(first_line: str) -> str:
    """Return what follows the name of the section: "[model] with ...: the models" -> "With ...: the models"."""
    text = first_line.split("]", 1)[1].lstrip(": ") if first_line.startswith("[") else first_line
    return _escaped(text[:1].upper() + text[1:])


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("_", r"\_").replace("<", r"\<").replace("[", r"\[")
