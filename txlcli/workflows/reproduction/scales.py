"""Texts, models and lengths that take the place of the paper's at each scale."""

import itertools
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import Settings, TrainSettings


@dataclass(frozen=True)
class ScaleText:
    """A token store, and the options that prepare it."""

    store: str
    source: str
    """Corpus, the argument of `txl prepare`."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of `txl prepare`, by their names in Python."""


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
    texts: Mapping[str, ScaleText]
    """Texts by store."""
    models: Mapping[str, Model]
    """Models by the part in the paper whose place they take."""
    positions: int | None = None
    """Tokens to score per evaluation; None is the whole split."""
    stride: int
    """Tokens predicted per window for models without memory; 1 is exact."""
    attn_lens: tuple[int, ...]
    """Attention lengths of Table 9."""
    recl_start: int
    """First context length of Table 8, and step."""
    recl_longest: int
    recl_positions: int
    sample_tokens: tuple[int, ...]
    """Lengths of the samples of Appendix E."""
    context: int
    """Tokens of context of a sample."""
    timed_recipe: str = "enwik8"
    """Recipe of Table 9."""

    def run_name(self, part: str, seed: int) -> str:
        """Return the name of the run for a part; parts with the same model share it."""
        return f"{self.name}-{self.models[part].key}-{seed}"


DATA = tomllib.loads((files("txlcli.workflows.reproduction") / "scales.toml").read_text(encoding="utf-8"))


def _expanded(changes: Iterable[str], **numbers: int) -> tuple[str, ...]:
    """Return changes with each `@name` replaced by that list of [changes], and each `{name}` by that number."""
    words: list[str] = []
    for change in changes:
        words += _expanded(DATA["changes"][change[1:]], **numbers) if change[0] == "@" else [change.format(**numbers)]
    return tuple(words)


def _models(table: dict[str, list[str]]) -> dict[str, Model]:
    return {key: Model(key, words[0], _expanded(words[1:])) for key, words in table.items()}


def ablation_models(
    prefix: str, base: Iterable[str], name: str, *, seg_len: int, longer: tuple[int, int], more: Iterable[str] = ()
) -> dict[str, Model]:
    """Return the rows of Tables 6 and 10 as changes of one recipe, with `more` for the longer segments of Table 10."""
    lengths = {"seg_len": seg_len, "two_segments": 2 * seg_len, "longer_full": longer[0], "longer_half": longer[1]}
    models = {}
    for row, changes in DATA["ablation"].items():
        last = more if row.endswith("longer") else ()
        models[f"{prefix}-{row}"] = Model(f"{prefix}-{row}", name, _expanded((*base, *changes, *last), **lengths))
    return models


def sentence_models(base: Iterable[str], name: str, *, seg_len: int) -> dict[str, Model]:
    """Return the rows of Table 7."""
    lengths = {"seg_len": seg_len, "two_segments": 2 * seg_len}
    return {
        key: Model(key, name, _expanded((*base, *changes), **lengths)) for key, changes in DATA["sentences"].items()
    }


MEMORIES = ("recurrence", "window", "compressive", "rmt")
COMPRESSION_RATE = 4
"""Tokens that the compressive models of the frontier compress into one slot."""
MAX_MEMORY_TOKENS = 10
"""Memory tokens of the frontier's models with L + M >= 80; others have one for 8 tokens of a segment."""
POSITIONS = ("relative", "rotary", "alibi", "t5", "none")
BLOCKS = ("paper", "modern")


def frontier_part(memory: str, position: str, block: str) -> str:
    """Return the name of a model of the frontier."""
    return f"frontier-{memory}-{position}-{block}"


def _last_of_each(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Return changes without those that a later one of the same setting replaces."""
    return tuple({change.partition("=")[0]: change for change in changes}.values())


def _by_memory(train: TrainSettings) -> dict[str, tuple[str, ...]]:
    """Return the changes that give a recipe each of MEMORIES, with as many tokens per step."""
    seg_len, mem_len = train.seg_len, train.mem_len
    window = mem_len + (seg_len + 1) // 2
    longer, slots = seg_len + mem_len, mem_len // 2
    return {
        "recurrence": (),
        "window": (
            f"model.window={window}",
            "train.mem_len=0",
            f"train.seg_len={longer}",
            f"train.batch_size={train.batch_size * seg_len // longer}",
            f"eval.mem_len={window - 1}",
        ),
        "compressive": (
            "model.arch=compressive",
            f"model.compressed_len={slots}",
            f"model.compression_rate={COMPRESSION_RATE}",
            f"train.mem_len={mem_len - slots}",
            f"eval.mem_len={mem_len - slots}",
        ),
        "rmt": (
            "model.arch=rmt",
            f"model.segment_len={longer}",
            f"model.n_memory_tokens={min(MAX_MEMORY_TOKENS, longer // 8)}",
            "train.mem_len=0",
            f"train.seg_len={2 * longer}",
            f"train.batch_size={train.batch_size * seg_len // (2 * longer)}",
            f"eval.seg_len={longer}",
            "eval.mem_len=0",
        ),
    }


def frontier_models(name: str, base: tuple[str, ...] = ()) -> dict[str, Model]:
    """Return the models of the frontier as changes of a recipe with memory, of equal cost.

    A query of the recurrent model attends to M + (L + 1) / 2 keys on average, and so do those of the others; with
    memory tokens, to fewer.

    Args:
        name: the recipe.
        base: changes for all models.
    """
    base = _expanded(base)
    settings = recipe.load(name, base)
    train, model, memories = settings.train, settings.model, _by_memory(settings.train)
    if not isinstance(model, TransformerSettings):
        raise ValueError(f"{name} has no attention")
    # Matrices of position keys and convolutions take their parameters from the feed-forward sublayer.
    narrower = {"compressive": COMPRESSION_RATE * model.d_model // 2}
    wider = dict.fromkeys(POSITIONS, model.n_heads * model.head_width // 2) | {"relative": 0}
    blocks = {"paper": (), "modern": ("model.block=modern", "model.norm=pre")}
    unlimited = ("eval.max_distance=none", "eval.same_length=off", "train.valid_seg_len=none")
    reading = (f"eval.seg_len={train.seg_len}", f"eval.mem_len={train.mem_len}", *unlimited)

    def changes(memory: str, position: str, block: str) -> tuple[str, ...]:
        d_inner = model.d_inner + wider[position] - narrower.get(memory, 0)
        sizes = (f"model.position={position}", f"model.d_inner={d_inner}")
        return _last_of_each((*base, *reading, *memories[memory], *sizes, *blocks[block]))

    names = itertools.product(MEMORIES, POSITIONS, BLOCKS)
    return {frontier_part(*three): Model(frontier_part(*three), name, changes(*three)) for three in names}


def _paper_models() -> dict[str, Model]:
    models = _models(DATA["paper"]["models"])
    return {
        **models,
        **ablation_models("ablation", (), "wt103-ablation", seg_len=128, longer=(176, 172)),
        "ablation-standard": models["words-xl"],
        **sentence_models((), "lm1b-ablation", seg_len=32),
        **frontier_models("enwik8", ("train.batch_size=24",)),  # which divides into longer segments
    }


def _scale(name: str, texts: Iterable[ScaleText], models: dict[str, Model], table: dict[str, Any]) -> Scale:
    """Return a scale from its table of scales.toml, without models, and its texts and models."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items() if key != "models"
    }
    return Scale(name=name, texts={text.store: text for text in texts}, models=models, **values)


BENCHMARKS = tuple(ScaleText(name, name) for name in ("enwik8", "text8", "wt103", "lm1b", "ptb"))
PAPER = _scale("paper", BENCHMARKS, _paper_models(), DATA["paper"])
SMALL_STEPS, SMALL_SHARE = 20_000, 3


def _smaller(model: Model) -> Model:
    """Return the model with a third of the layers and at most 20,000 steps; the warm-up keeps its share of them."""
    settings = model.settings()
    steps = min(settings.train.max_steps, SMALL_STEPS)
    warmup = settings.train.warmup_steps * steps // settings.train.max_steps
    layers = settings.model.n_layers
    changes = [f"train.max_steps={steps}", f"train.warmup_steps={warmup}", f"train.valid_every={steps // 10}"]
    if settings.model.has_attention:
        changes.append(f"model.n_layers={-(-layers // SMALL_SHARE)}")
    return Model(model.key, model.recipe, (*model.changes, *changes))


def small() -> Scale:
    """Return the scale with the paper's corpora, a third of its layers and a fraction of its steps."""
    models = {key: _smaller(model) for key, model in PAPER.models.items()}
    return _scale("small", BENCHMARKS, models, DATA["paper"] | DATA["small"])


WORDS = ScaleText("tiny-words", "stdlib", {"tokenizer": "word", "vocab_size": 8000})
CHARS = ScaleText("tiny-chars", "stdlib", {"tokenizer": "char", "min_count": 20})


def tiny(*, has_ptb: bool) -> Scale:
    """Return the scale that takes minutes per table on two processor cores, without a network."""
    ptb = ScaleText("ptb", "ptb") if has_ptb else WORDS
    models = _models(DATA["tiny"]["models"])
    sentences = sentence_models(("@on-words", "@short"), "stdlib", seg_len=16)
    models |= {
        "ptb-xl": Model(
            f"ptb-xl-on-{ptb.store}",
            "stdlib",
            _expanded((f"corpus.store={ptb.store}", "@tiny-steps", "@regularized")),
        ),
        **ablation_models(
            "ablation",
            ("@tiny-steps", "@shortest"),
            "stdlib",
            seg_len=8,
            longer=(12, 12),
            more=("@fewer-lanes",),
        ),
        "ablation-standard": models["bytes-xl-18"],
        **sentences,
        "sentences-xl": sentences["short-xl"],
        **frontier_models("stdlib", ("@tiny-steps", "@short", "@smaller")),
    }
    return _scale("tiny", (WORDS, CHARS, ScaleText("stdlib", "stdlib"), ptb), models, DATA["tiny"])


SCALES: dict[str, Callable[[bool], Scale]] = {
    "tiny": lambda has_ptb: tiny(has_ptb=has_ptb),
    "small": lambda _: small(),
    "paper": lambda _: PAPER,
}
"""Scales by name; the argument is True if Penn Treebank has been prepared."""


def get(name: str, *, has_ptb: bool) -> Scale:
    """Return a scale by its name, one of SCALES."""
    return SCALES[name](has_ptb)
