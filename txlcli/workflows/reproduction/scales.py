"""Texts, models and lengths that take the place of the paper's at each scale; scales.toml has them."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from txlcli.config import recipe
from txlcli.config.settings import Settings

DATA = tomllib.loads((files("txlcli.workflows.reproduction") / "scales.toml").read_text(encoding="utf-8"))
ROWS = ("ablation", "sentences", "frontier")
"""Tables of models that are changes of one recipe."""
SMALL_STEPS, SMALL_SHARE = 20_000, 3


@dataclass(frozen=True)
class Model:
    """A model to train: a recipe with changes."""

    key: str
    """Name in the names of its runs."""
    recipe: str
    changes: tuple[str, ...] = ()

    def settings(self) -> Settings:
        """Return the resolved recipe."""
        return recipe.load(self.recipe, self.changes)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A size at which the paper can be reproduced."""

    name: str
    description: str
    """Meaning of its numbers, for the report."""
    texts: Mapping[str, Mapping[str, Any]]
    """For each store, its corpus ("source") and the options of `txl prepare`, by their names in Python."""
    models: Mapping[str, Model]
    """Models by the part in the paper whose place they take."""
    positions: int | None = None
    """Tokens to score per evaluation; None is the whole split."""
    stride: int
    """Tokens predicted per window for models without memory; 1 is exact."""
    attn_lens: list[int]
    """Attention lengths of Table 9."""
    recl_start: int
    """First context length of Table 8, and step."""
    recl_longest: int
    recl_positions: int
    sample_tokens: list[int]
    """Lengths of the samples of Appendix E."""
    context: int
    """Tokens of context of a sample."""
    timed_recipe: str = "enwik8"
    """Recipe of Table 9."""

    def run_name(self, part: str, seed: int) -> str:
        """Return the name of the run for a part; parts with the same model share it."""
        return f"{self.name}-{self.models[part].key}-{seed}"


def get(name: str) -> Scale:
    """Return a scale: tiny, small or paper."""
    table = DATA["paper"] | DATA[name]
    models = {part: _model(part, words) for part, words in table["models"].items()}
    for rows in ROWS:
        base, numbers = table[rows]["base"], table[rows]["numbers"]
        models |= {part: _model(part, [*base, *changes], **numbers) for part, changes in DATA[rows].items()}
    models |= {part: models[other] for part, other in table["same"].items()}
    if name == "small":
        models = {part: _smaller(model) for part, model in models.items()}
    values = {field.name: table[field.name] for field in fields(Scale) if field.name in table}
    return Scale(**values | {"name": name, "models": models})


def _model(key: str, words: Iterable[str], **numbers: object) -> Model:
    """Return the model of a recipe and changes; the last change of a setting counts."""
    recipe_name, *changes = words
    last = {change.partition("=")[0]: change for change in _expanded(changes, numbers)}
    return Model(key, recipe_name, tuple(last.values()))


def _expanded(changes: Iterable[str], numbers: Mapping[str, object]) -> list[str]:
    """Return changes with each `@name` replaced by that list of [changes], and each `{name}` by that number."""
    words: list[str] = []
    for change in changes:
        is_list = change.startswith("@")
        words += _expanded(DATA["changes"][change[1:]], numbers) if is_list else [change.format(**numbers)]
    return words


def _smaller(model: Model) -> Model:
    """Return the model with a third of the layers and at most 20,000 steps; the warm-up keeps its share of them."""
    settings = model.settings()
    steps = min(settings.train.max_steps, SMALL_STEPS)
    warmup = settings.train.warmup_steps * steps // settings.train.max_steps
    changes = [f"train.max_steps={steps}", f"train.warmup_steps={warmup}", f"train.valid_every={steps // 10}"]
    if settings.model.has_attention:
        changes.append(f"model.n_layers={-(-settings.model.n_layers // SMALL_SHARE)}")
    return _model(model.key, [model.recipe, *model.changes, *changes])
