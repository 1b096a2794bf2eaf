"""Reads recipes, packaged or the user's own, as Settings, with overrides; describes every setting in words."""

import dataclasses
import functools
import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from txlcli.config.descriptions import descriptions
from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.ranges import OFF_WORDS, FieldType
from txlcli.config.settings import Settings, plain_name
from txlcli.config.traits import ENCODING_TRAITS, FEED_FORWARDS, OPTIMIZERS
from txlcli.errors import MAX_LISTED, RecipeError, UnknownKeyError, UnknownNameError, shortened
from txlcli.suggestions import did_you_mean, meant_setting
from txlcli.system.input_files import MAX_SETTINGS, check_regular
from txlcli.system.input_files import read_text as read_file

SECTIONS: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Settings)}
PACKAGED = Path(str(resources.files("txlcli.recipes")))
"""Directory of the packaged recipes."""
MAX_DOTS = 200
"""Most dots in a line of a recipe: the memory that tomllib needs grows with the square of the parts of a key."""
LISTING = '"txl recipes" lists all'
REQUIRED = "required"
NO_VALUE = "-"
"""Defaults of settings, in words."""
NOT_COMPARED = "published."  # results, not settings
REGISTERED: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
    ("model", "arch", "architecture", MODELS),
    ("model", "position", "encoding", ENCODING_TRAITS),
    ("model", "feed_forward", "feed-forward sublayer", FEED_FORWARDS),
    ("train", "optimizer", "optimizer", OPTIMIZERS),
)
"""Settings whose values other packages may register: section, key, kind, and the table of the names."""
ONLY_IN_TRAINING = ("dropout", "init", "gate_bias")
"""Parts of the names of settings of a model that trained weights no longer depend on."""


def packaged_names() -> list[str]:
    """Return the sorted names of the recipes that come with txl."""
    return sorted(path.stem for path in PACKAGED.glob("*.toml"))


def read_text(recipe: str) -> tuple[str, str]:
    """Return the name and the text of a recipe: of the file, or of the packaged recipe if there is no such file.

    A file with the name of a packaged recipe that is too large for a recipe is the corpus, such as enwik8.
    """
    path = check_regular(Path(recipe))
    if not path.is_file():
        return packaged(recipe)
    if path.stat().st_size > MAX_SETTINGS:
        if recipe in packaged_names():
            return packaged(recipe)
        raise RecipeError(f"{recipe}: too large for a recipe{_next_step(path)}")
    try:
        return plain_name(path, otherwise="recipe"), read_file(path, MAX_SETTINGS)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{recipe}: cannot be read as a text file ({error}){_next_step(path)}") from error


def packaged(recipe: str) -> tuple[str, str]:
    """Return the name and the text of a packaged recipe, even if the current directory has a file of that name."""
    name = recipe.removeprefix("recipes/").removesuffix(".toml")
    names = packaged_names()
    if name not in names:
        # A missing file in another directory is an error: mine/enwik8.toml must not silently become enwik8.
        raise UnknownNameError("recipe", recipe, names, like=Path(recipe).stem, listing=LISTING)
    return name, (PACKAGED / f"{name}.toml").read_text(encoding="utf-8")


def load(recipe: str, overrides: Iterable[str] = ()) -> Settings:
    """Read a recipe, packaged or a file, and resolve its settings: `overrides`, then the recipe, then the defaults."""
    _, text = read_text(recipe)
    return resolve_text(text, recipe, overrides)


def resolve_text(text: str, name: str, overrides: Iterable[str] = ()) -> Settings:
    """Resolve the settings of a recipe's text; every error message begins with `name`."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DOTS and not line.lstrip().startswith("#"):
            raise RecipeError(f"{name}: line {number} has more than {MAX_DOTS} dots; a key is section.key")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        quoted = '; a word is in quotes, as in clip = "none"' if "Invalid value" in str(error) else ""
        raise RecipeError(f"{name}: not a TOML file ({error}){quoted}{_next_step(Path(name))}") from error
    return resolve(table, name, overrides)


def _next_step(path: Path) -> str:
    """Return the end of the message about a file that is not a recipe by its name; empty for others."""
    if path.suffix == ".toml" or not path.is_file():
        return ""
    if path.suffix == ".h5":
        return f'; give a token store by its name, "{path.stem}"'
    return f'; a recipe is a TOML file, and a text becomes a token store with "txl prepare {path}"'


def _override(table: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the sections in which each `section.key=value` is set, the last one of a key."""
    result = dict(table)
    for text in overrides:
        name, equals, value = (part.strip() for part in text.partition("="))
        section, dot, key = name.partition(".")
        if not (equals and section and key):
            hint = ", for example train.lr=1e-4"
            if equals and not dot:
                meant = meant_setting("", name, setting_names())
                hint = f'; did you mean "{meant}={value}"?' if meant else hint
            raise RecipeError(f"`overrides` {text}: write it as section.key=value{hint}")
        keys = result.get(section, {})
        if isinstance(keys, Mapping):  # `resolve` rejects anything else
            result[section] = {**keys, key: _parse_value(name, value)}
    return result


def _parse_value(name: str, text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # a bare word: model.norm=pre
    if name == "corpus.store" and not isinstance(value, str):  # a store may be named 2024
        return text
    return value


def resolve(table: Mapping[str, Any], where: str, overrides: Iterable[str] = ()) -> Settings:
    """Turn sections of keys into Settings, with `section.key=value` changes; an error begins with `where` and these."""
    changes = list(overrides)
    table = _override(table, changes)
    if changes:
        where = f"{where} with {shortened(', '.join(changes))}"
    try:
        for name in table:
            if name not in SECTIONS:
                known = ", ".join(SECTIONS)
                raise UnknownKeyError(
                    f'no section "{name}"{did_you_mean(name, SECTIONS)} (known: {known})', setting=name
                )
        sections = {name: read_section(name, table.get(name, {})) for name in SECTIONS}
        return Settings(**sections)
    except RecipeError as error:
        raise type(error)(f"{where}: {error}", setting=error.setting) from error
    except (ValueError, OverflowError) as error:  # numbers of thousands of digits
        raise RecipeError(f"{where}: {error}") from error


def unregistered(table: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return kind and name of a part, such as an architecture, that no package has registered; None: all are."""
    for section_name, key, kind, known in REGISTERED:
        keys = table.get(section_name)
        value = keys.get(key) if isinstance(keys, Mapping) else None
        if isinstance(value, str) and value not in known:
            return kind, value
    return None


def read_section(name: str, keys: Any) -> Any:
    """Turn the keys of one section into its settings."""
    if not isinstance(keys, Mapping):
        raise RecipeError(f"[{name}] must be a section of keys", setting=name)
    cls = SECTIONS[name]
    if name == "model":
        arch = keys.get("arch", ModelSettings.arch)
        error = functools.partial(RecipeError, setting="model.arch")
        FieldType((str,), words=tuple(MODELS), is_registered=True).check("[model] arch", arch, error)
        cls = MODELS[arch]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in keys:
        if key not in fields:
            message = f'[{name}] has no key "{key}"{_suggestion(key, name, keys, list(fields))}'
            raise UnknownKeyError(message, setting=f"{name}.{key}")
    for key, field in fields.items():
        if field.default is dataclasses.MISSING and key not in keys:
            raise RecipeError(f'[{name}] needs the key "{key}"', setting=f"{name}.{key}")
    values = {}
    for key, value in keys.items():
        values[key] = FieldType.of(fields[key].type).read(value)
    return cls(**values)


def _suggestion(key: str, section: str, keys: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the part of the message that says what to do about an unknown key."""
    if f"{section}.{key}" in setting_names():
        return f'; it does not apply to arch = "{keys.get("arch", ModelSettings.arch)}", leave it out'
    meant = meant_setting(section, key, setting_names())
    if meant:
        return f'; did you mean "{meant}"?'
    if len(known) > MAX_LISTED:
        return f'; "txl recipes keys {section}" lists all'
    return f" (known: {', '.join(known)})"


def to_table(settings: Settings) -> dict[str, dict[str, Any]]:
    """Turn Settings into sections of keys, the inverse of `resolve`; None is "none" where it is not the default."""
    return {section: to_keys(getattr(settings, section)) for section in SECTIONS}


def to_keys(section: Any) -> dict[str, Any]:
    """Turn one section of the settings into keys."""
    keys: dict[str, Any] = {}
    for key, value in vars(section).items():
        if isinstance(value, tuple):
            keys[key] = list(value)
        elif value is not None:
            keys[key] = value
        elif not section.is_default(key):
            keys[key] = OFF_WORDS[0]
    return keys


def function_keys(model: ModelSettings) -> dict[str, Any]:
    """Return the settings of a model that change what its weights compute, without those at their defaults.

    A later version may add settings whose defaults are what this one does. Dropout and initial values are left out:
    they matter in training only.
    """
    keys = {}
    for key, value in to_keys(model).items():
        matters = not any(word in key for word in ONLY_IN_TRAINING)
        if matters and not model.is_default(key):
            keys[key] = value
    return keys


def changed_keys(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults, by full name; those without a default always do."""
    changed = {}
    for section, keys in to_table(settings).items():
        for key, value in keys.items():
            if not getattr(settings, section).is_default(key):
                changed[f"{section}.{key}"] = value
    return changed


def differences(tables: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Return the settings, by full name, whose values differ between tables; None if off or missing."""
    by_table = list(map(_full_names, tables))
    different = {}
    for name in dict.fromkeys(itertools.chain(*by_table)):
        row = [values.get(name) for values in by_table]
        if not name.startswith(NOT_COMPARED) and any(value != row[0] for value in row):
            different[name] = row
    return different


def _full_names(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a table as section.key."""
    values = {}
    for section, keys in table.items():
        for key, value in keys.items():
            values[f"{section}.{key}"] = value
    return values


def format_value(value: Any, *, off: str = NO_VALUE) -> str:
    """Format the value of a setting for a table, or for a message with `off` = "none"."""
    if value is None:
        return off
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return json.dumps(value)
    return str(value)


def facts(settings: Settings) -> dict[str, str]:
    """Return the value of each setting in words, by full name."""
    values = _full_names(to_table(settings))
    return {name: format_value(value) for name, value in values.items()}


def classes_of(section: str) -> dict[str, Any]:
    """Return the class of a section; of [model] the one of each architecture by its name."""
    if section == "model":
        return dict(MODELS)
    return {"": SECTIONS[section]}


def setting_names() -> list[str]:
    """Return all settings as section.key; [model] has the settings of all architectures."""
    names = []
    for section in SECTIONS:
        for cls in classes_of(section).values():
            names += [f"{section}.{field.name}" for field in dataclasses.fields(cls)]
    return list(dict.fromkeys(names))


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


def described_keys(section: str) -> list[Key]:
    """Return the settings of a section, in the order of the dataclasses; a setting of [model] may differ by arch."""
    classes = classes_of(section)
    architectures: dict[tuple[str, str, str, str], list[str]] = {}
    for arch, cls in classes.items():
        texts = descriptions(cls)
        for field in dataclasses.fields(cls):
            values = str(FieldType.of(field.type))
            description = (f"{section}.{field.name}", values, _in_words(field.default), texts[field.name])
            architectures.setdefault(description, []).append(arch)
    described = []
    for (setting, values, default, text), names in architectures.items():
        only_in = None if names == list(classes) else tuple(names)
        described.append(Key(setting=setting, values=values, default=default, arch=only_in, description=text))
    return described


def _in_words(default: Any) -> str:
    """Return a default as a recipe has it."""
    if default is dataclasses.MISSING:
        return REQUIRED
    if default is None:
        return NO_VALUE
    if isinstance(default, tuple):
        return str(list(default))
    if isinstance(default, float):
        return f"{default:g}"
    return str(default).lower()
