"""Reads recipes, packaged or the user's own, as Settings, with --set overrides."""

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.ranges import FieldType
from txlcli.config.settings import Settings, plain_name
from txlcli.errors import MAX_LISTED, RecipeError, UnknownNameError, UsageError
from txlcli.suggestions import did_you_mean, meant_setting
from txlcli.system.input_files import MAX_SETTINGS, check_regular
from txlcli.system.input_files import read_text as read_file
from txlcli.system.plain_json import parse_toml

SECTIONS = {field.name: field.type for field in dataclasses.fields(Settings)}
OFF_WORDS = ("none", "off")
MAX_CHANGES_LISTED = 3  # by an error
NOT_COMPARED = ("published",)  # results, not settings
ONLY_IN_TRAINING = ("dropout", "init", "gate_bias")
"""Parts of the names of settings of a model that trained weights no longer depend on."""


def packaged_names() -> list[str]:
    """Return the sorted names of the recipes that come with txl."""
    directory = resources.files("txlcli.recipes")
    return sorted(item.name.removesuffix(".toml") for item in directory.iterdir() if item.name.endswith(".toml"))


def schema_file() -> str:
    """Return the path of the JSON Schema that comes with txl."""
    return str(resources.files("txlcli.recipes").joinpath("schema.json"))


def read_text(recipe: str) -> tuple[str, str]:
    """Return the name and the text of a recipe: of the file, or of the packaged recipe if there is no such file."""
    path = check_regular(Path(recipe))
    if path.is_file() and not (recipe in packaged_names() and _cannot_be_recipe(path)):
        try:
            return plain_name(path, otherwise="recipe"), read_file(path, MAX_SETTINGS)
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{recipe}: cannot be read as a text file ({error})") from error
    # A missing file in another directory is an error: mine/enwik8.toml must not silently become the packaged enwik8.
    if str(path.parent) not in (".", "recipes"):
        raise UnknownNameError(
            "recipe", recipe, packaged_names(), like=path.name.removesuffix(".toml"), listing='"txl recipes" lists all'
        )
    return packaged(recipe)


def _cannot_be_recipe(path: Path) -> bool:
    """Return True if a file is not TOML, such as the corpus enwik8, which has the name of a recipe."""
    try:
        parse_toml(read_file(path, MAX_SETTINGS))
    except (OSError, ValueError, UsageError):
        return True
    return False


def packaged(recipe: str) -> tuple[str, str]:
    """Return the name and the text of a packaged recipe, even if the current directory has a file of that name."""
    name, names = recipe.removeprefix("recipes/").removesuffix(".toml"), packaged_names()
    if name not in names:
        is_file = recipe.endswith(".toml")
        listing = 'no such file; "txl recipes" lists the packaged ones' if is_file else '"txl recipes" lists all'
        raise UnknownNameError("recipe", recipe, names, like=name, listing=listing)
    return name, resources.files("txlcli.recipes").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def load(recipe: str, overrides: Iterable[str] = ()) -> Settings:
    """Read a recipe and resolve its settings: --set overrides the recipe, which overrides the defaults.

    Args:
        recipe: a path, or the name of a packaged recipe with or without `recipes/` and `.toml`.
        overrides: `section.key=value` texts.
    """
    _, text = read_text(recipe)
    return resolve_text(text, recipe, overrides)


def resolve_text(text: str, name: str, overrides: Iterable[str] = ()) -> Settings:
    """Resolve the settings of a recipe's text; every error message begins with `name`."""
    try:
        table = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{name}: not a TOML file ({error})") from error
    except ValueError as error:
        raise RecipeError(f"{name}: {error}, which no recipe needs; give plain values") from error
    changes = list(overrides)
    return resolve(override(table, changes), where=with_changes(name, changes))


def with_changes(name: str, changes: Sequence[str]) -> str:
    """Return the beginning of an error about a recipe, or a run, with changes; many changes are counted."""
    if len(changes) > MAX_CHANGES_LISTED:
        return f"{name} with {len(changes)} --set changes"
    return " --set ".join([f"{name} with", *changes]) if changes else name


def override(table: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the sections in which each `section.key=value` is set."""
    result = {section: dict(keys) if isinstance(keys, Mapping) else keys for section, keys in table.items()}
    for text in overrides:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            meant = meant_setting("", name.strip(), setting_names()) if equals and not dot else None
            hint = f'; did you mean "--set {meant}={value}"?' if meant else ', for example "--set train.lr=1e-4"'
            raise RecipeError(f"--set {text}: write it as section.key=value{hint}")
        _known_section(section, f"--set {text}")
        keys = result.setdefault(section, {})
        if isinstance(keys, dict):  # `resolve` rejects anything else
            keys[key] = _parse_value(value.strip(), name.strip(), is_text=_takes_text(section, key))
    return result


def _takes_text(section: str, key: str) -> bool:
    """Return True if a key's value is free text, which may look like a number or a date: a store may be named 2024."""
    fields = {field.name: field.type for field in dataclasses.fields(typing.cast(Any, SECTIONS[section]))}
    return fields.get(key) is str


def _parse_value(text: str, name: str, *, is_text: bool) -> Any:
    if text.lower() in OFF_WORDS and not is_text:
        return text.lower()  # the type of the field decides if this is a word or None
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word: --set model.norm=pre
    except ValueError as error:
        raise RecipeError(f"--set {name}: {error}; give a plain value") from error
    return text if is_text and not isinstance(value, str) else value


def resolve(table: Mapping[str, Any], where: str) -> Settings:
    """Turn sections of keys into Settings; every error message begins with `where`."""
    for name in table:
        _known_section(name, where)
    sections = {}
    for name in SECTIONS:
        keys = table.get(name, {})
        if not isinstance(keys, Mapping):
            raise RecipeError(f"{where}: [{name}] must be a section of keys")
        try:
            sections[name] = section(name, keys)
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from error
    try:
        return Settings(**sections)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error


def _model_class(keys: Mapping[str, Any]) -> type:
    """Return the settings class of the architecture."""
    word = keys.get("arch", ModelSettings.arch)
    if not isinstance(word, str) or word not in MODELS:
        suggestion = did_you_mean(str(word), MODELS)
        raise RecipeError(f"[model] arch must be one of {', '.join(MODELS)}, not {word!r}{suggestion}")
    return MODELS[word]


def section(name: str, keys: Mapping[str, Any]) -> Any:
    """Turn the keys of one section into its settings."""
    cls = _model_class(keys) if name == "model" else typing.cast(type, SECTIONS[name])
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in keys:
        if key not in fields:
            raise RecipeError(f'[{name}] has no key "{key}"{_suggestion(key, name, keys, list(fields))}')
    for key, field in fields.items():
        if is_required(field) and key not in keys:
            raise RecipeError(f'[{name}] needs the key "{key}"')
    return cls(**{key: _typed(value, FieldType.of(fields[key].type), name, key) for key, value in keys.items()})


def to_table(settings: Settings) -> dict[str, dict[str, Any]]:
    """Turn Settings into sections of keys, the inverse of `resolve`; None is "none" where it is not the default."""
    return {section: to_keys(getattr(settings, section)) for section in SECTIONS}


def to_keys(section: Any) -> dict[str, Any]:
    """Turn one section of the settings into keys."""
    keys = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if value is not None:
            keys[field.name] = list(value) if isinstance(value, tuple) else value
        elif field.default is not None:
            keys[field.name] = OFF_WORDS[0]
    return keys


def function_keys(model: ModelSettings) -> dict[str, Any]:
    """Return the settings of a model that change what its weights compute, without those at their defaults.

    A later version may add settings whose defaults are what this one does. Dropout and initial values are left out:
    they matter in training only.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(model)}
    return {
        key: value
        for key, value in to_keys(model).items()
        if getattr(model, key) != defaults[key] and not any(word in key for word in ONLY_IN_TRAINING)
    }


def changed_keys(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults, by full name; those without a default always do."""
    return {
        f"{section}.{field.name}": getattr(getattr(settings, section), field.name)
        for section in SECTIONS
        for field in dataclasses.fields(getattr(settings, section))
        if getattr(getattr(settings, section), field.name) != field.default
    }


def differences(tables: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Return the settings, by full name, whose values differ between tables; None if off or missing."""
    names = {
        f"{section}.{key}": (section, key)
        for table in tables
        for section, keys in table.items()
        for key in keys
        if section not in NOT_COMPARED
    }
    values = {name: [table[section].get(key) for table in tables] for name, (section, key) in names.items()}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def format_value(value: Any) -> str:
    """Format the value of a setting for a table or a message."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _known_section(section: str, where: str) -> None:
    if section not in SECTIONS:
        known = ", ".join(SECTIONS)
        raise RecipeError(f'{where}: no section "{section}"{did_you_mean(section, SECTIONS)} (known: {known})')


def setting_names() -> list[str]:
    """Return all settings as section.key; [model] has the settings of all architectures."""
    classes: dict[str, list[Any]] = {name: [cls] for name, cls in SECTIONS.items()} | {"model": list(MODELS.values())}
    names = (f"{name}.{field.name}" for name, of in classes.items() for cls in of for field in dataclasses.fields(cls))
    return list(dict.fromkeys(names))


def _suggestion(key: str, section: str, keys: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the part of the message that says what to do about an unknown key."""
    of_all = {field.name for cls in MODELS.values() for field in dataclasses.fields(cls)}
    if section == "model" and key in of_all:
        return f'; it does not apply to arch = "{keys.get("arch", ModelSettings.arch)}", leave it out'
    meant = meant_setting(section, key, setting_names())
    if meant:
        return f'; did you mean "{meant}"?'
    return f" (known: {', '.join(known)})" if len(known) <= MAX_LISTED else f'; "txl recipes keys {section}" lists all'


def _typed(value: Any, type_: FieldType, section: str, key: str) -> Any:
    """Convert a value to the type of its field: an integer to a float, a word to a list of one."""
    if type_.can_be_off and value in OFF_WORDS:
        return None
    if type_.is_list:
        parts = [value] if type_.words and isinstance(value, str) else value
        if isinstance(parts, list | tuple) and all(type(part) is type_.item for part in parts):
            return tuple(parts)
    elif type(value) is type_.item:
        return value  # the dataclass checks ranges and words
    elif type_.item is float and type(value) is int:
        return float(value)
    named = type_.name if type_.name == "true or false" else f"a {type_.name}"
    named = f"a word or {named}" if type_.words and type_.is_list else named
    raise RecipeError(f"[{section}] {key} must be {named}, not {value!r}")


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return True if a recipe must have the key of a field."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
