"""Texts, models and lengths that take the place of the paper's at each scale."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

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


@dataclass(frozen=True)
class Scale:
    """A size at which the paper can be reproduced."""

    name: str
    description: str
    """Meaning of its numbers, for the report."""
    texts: Mapping[str, ScaleText]
    """Texts by store."""
    models: Mapping[str, Model]
    """Models by the part in the paper whose place they take."""
    positions: int | None
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


def _by_key(*models: Model) -> dict[str, Model]:
    return {model.key: model for model in models}


def _model(key: str, name: str, *changes: str) -> Model:
    return Model(key, name, changes)


NO_MEMORY = ("train.mem_len=0", "eval.mem_len=0", "eval.same_length=off")


def _alone(seg_len: int) -> tuple[str, ...]:
    """Return changes for a model without recurrence, whose distances are those of a segment in evaluation as well."""
    return (*NO_MEMORY, f"eval.max_distance={seg_len}")


ALONE_ABSOLUTE = (*NO_MEMORY, "eval.max_distance=none")  # absolute positions
HALF = "train.loss_part=half"


def ablation_models(
    prefix: str, base: tuple[str, ...], name: str, seg_len: int, longer: tuple[int, int], *more: str
) -> dict[str, Model]:
    """Return the rows of Tables 6 and 10 as changes of one recipe, with `more` for the longer segments of Table 10."""
    one_segment, two_segments = f"model.n_positions={seg_len}", f"model.n_positions={2 * seg_len}"
    rows = {
        "xl-full": (),
        "shaw-full": ("model.position=shaw", two_segments),
        "xl-half": (HALF,),
        "alone-xl-full": _alone(seg_len),
        "alone-xl-half": (*_alone(seg_len), HALF),
        "alone-shaw-full": (*_alone(seg_len), "model.position=shaw", one_segment),
        "alone-shaw-half": (*_alone(seg_len), HALF, "model.position=shaw", one_segment),
        "alone-sinusoid-half": (*ALONE_ABSOLUTE, HALF, "model.position=sinusoid"),
        "alone-learned-half": (*ALONE_ABSOLUTE, HALF, "model.position=learned", one_segment),
        "alone-xl-full-longer": (*_alone(longer[0]), f"train.seg_len={longer[0]}", *more),
        "alone-xl-half-longer": (*_alone(longer[1]), HALF, f"train.seg_len={longer[1]}", *more),
    }
    return _by_key(*(Model(f"{prefix}-{key}", name, (*base, *changes)) for key, changes in rows.items()))


def sentence_models(base: tuple[str, ...], name: str, seg_len: int) -> dict[str, Model]:
    """Return the rows of Table 7."""
    return _by_key(
        _model("short-xl", name, *base),
        _model("short-shaw", name, *base, "model.position=shaw", f"model.n_positions={2 * seg_len}"),
        _model("short-alone", name, *base, *_alone(seg_len)),
    )


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
    return _by_key(*(Model(frontier_part(*three), name, changes(*three)) for three in names))


WORDS_XL = _model("words-xl", "wt103")
PAPER_MODELS = {
    **_by_key(
        WORDS_XL,
        _model("words-xl-large", "wt103-large"),
        _model("words-adaptive-input", "adaptive-input-wt103"),
        _model("words-qrnn", "qrnn-wt103"),
        _model("words-lstm", "lstm-wt103"),
        _model("bytes-xl-12", "enwik8"),
        _model("bytes-xl-18", "enwik8-18l"),
        _model("bytes-xl-24", "enwik8-24l"),
        _model("bytes-vanilla-12", "vanilla-enwik8"),
        _model("bytes-vanilla-64", "vanilla-enwik8-64l"),
        _model("chars-xl-24", "text8-24l"),
        _model("chars-vanilla-12", "vanilla-enwik8", "corpus.store=text8"),
        _model("chars-vanilla-64", "vanilla-enwik8-64l", "corpus.store=text8"),
        _model("sentences-xl", "lm1b"),
        _model("sentences-xl-large", "lm1b-large"),
        _model("ptb-xl", "ptb"),
    ),
    **ablation_models("ablation", (), "wt103-ablation", 128, (176, 172)),
    "ablation-standard": WORDS_XL,
    **sentence_models((), "lm1b-ablation", 32),
    **frontier_models("enwik8", ("train.batch_size=24",)),  # which divides into longer segments
}
BENCHMARKS = {name: ScaleText(name, name) for name in ("enwik8", "text8", "wt103", "lm1b", "ptb")}

PAPER = Scale(
    name="paper",
    description="The paper's own corpora, sizes and steps.",
    texts=BENCHMARKS,
    models=MappingProxyType(PAPER_MODELS),
    positions=None,
    stride=1,
    attn_lens=(3800, 2800, 1800, 800),
    recl_start=100,
    recl_longest=1200,
    recl_positions=10_000,
    sample_tokens=(500, 500, 1000),
    context=512,
)

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
    return replace(
        PAPER,
        name="small",
        description=(
            "The paper's corpora, with a third of its layers and at most 20,000 steps: hours on one data-centre GPU "
            "for most models. The numbers are not the paper's; the order of the rows should be."
        ),
        models=MappingProxyType({key: _smaller(model) for key, model in PAPER_MODELS.items()}),
        positions=100_000,
        stride=8,
        recl_positions=2_000,
    )


# At tiny scale the source of Python's standard library replaces every corpus: as bytes enwik8 and the text of the
# ablations, as characters text8, as words the others, except for Penn Treebank if that has been prepared.
WORDS = ScaleText("tiny-words", "stdlib", {"tokenizer": "word", "vocab_size": 8000})
CHARS = ScaleText("tiny-chars", "stdlib", {"tokenizer": "char", "min_count": 20})
TINY_STEPS = (
    "train.max_steps=500",
    "train.valid_every=500",
    "train.valid_tokens=20000",
    "log.every=50",
)
ON_WORDS = ("corpus.store=tiny-words", *TINY_STEPS)
ON_CHARS = ("corpus.store=tiny-chars", *TINY_STEPS)
DEEPER = "model.n_layers=6"
WIDER = ("model.d_model=192", "model.n_heads=6", "model.d_inner=768")  # the paper's large models are mainly wider
# Shorter than the context that a model uses after 500 steps (16 to 30 words), so that memory can help.
SHORT = ("train.seg_len=16", "train.mem_len=16", "eval.seg_len=16", "eval.mem_len=16", "train.batch_size=64")
# Models use more than eight bytes after a few hundred steps: recurrence counts for more than the number of losses.
SHORTEST = ("train.seg_len=8", "train.mem_len=8", "eval.seg_len=8", "eval.mem_len=8", "train.batch_size=128")
SMALLER = ("model.n_layers=2", "train.max_steps=300", "train.valid_every=300")
TINY_STATE = ("model.d_model=128", "model.d_hidden=256", "model.dropout=0.0", "train.seg_len=64", "train.batch_size=16")


def _tiny_models(ptb: str) -> dict[str, Model]:
    on_ptb = (f"corpus.store={ptb}", *TINY_STEPS)
    # 85 x 12 bytes per step are as much text as 128 x 8: in so short a training, more text would decide the result.
    ablation = ablation_models("ablation", (*TINY_STEPS, *SHORTEST), "stdlib", 8, (12, 12), "train.batch_size=85")
    sentences = sentence_models((*ON_WORDS, *SHORT), "stdlib", 16)
    bytes_xl = _model("bytes-xl-18", "stdlib", *TINY_STEPS)
    regularized = ("model.dropout=0.1", "model.variational_dropout=true", "train.average=exponential")
    return {
        **_by_key(
            _model("words-xl", "stdlib", *ON_WORDS),
            _model("words-xl-large", "stdlib", *ON_WORDS, *WIDER),
            _model("words-adaptive-input", "stdlib", *ON_WORDS, *NO_MEMORY, "model.position=sinusoid"),
            _model("words-qrnn", "qrnn-ptb", *ON_WORDS, *TINY_STATE),
            _model("words-lstm", "lstm-ptb", *ON_WORDS, *TINY_STATE),
            _model("bytes-xl-12", "stdlib", *TINY_STEPS, "model.n_layers=3"),
            bytes_xl,
            _model("bytes-xl-24", "stdlib", *TINY_STEPS, DEEPER),
            _model("bytes-vanilla-12", "vanilla-stdlib", *TINY_STEPS, "model.n_layers=3"),
            _model("bytes-vanilla-64", "vanilla-stdlib", *TINY_STEPS, DEEPER),
            _model("chars-xl-24", "stdlib", *ON_CHARS),
            _model("chars-vanilla-12", "vanilla-stdlib", *ON_CHARS, "model.n_layers=3"),
            _model("chars-vanilla-64", "vanilla-stdlib", *ON_CHARS),
            _model("sentences-xl-large", "stdlib", *ON_WORDS, *SHORT, *WIDER),
        ),
        "ptb-xl": Model(f"ptb-xl-on-{ptb}", "stdlib", (*on_ptb, *regularized)),
        **ablation,
        "ablation-standard": bytes_xl,
        **sentences,
        "sentences-xl": sentences["short-xl"],
        **frontier_models("stdlib", (*TINY_STEPS, *SHORT, *SMALLER)),
    }


def tiny(*, has_ptb: bool) -> Scale:
    """Return the scale that takes minutes per table on two processor cores, without a network."""
    ptb = ScaleText("ptb", "ptb") if has_ptb else WORDS
    texts = {text.store: text for text in (WORDS, CHARS, ScaleText("stdlib", "stdlib"), ptb)}
    return Scale(
        name="tiny",
        description=(
            "Tiny scale: models of about a million parameters, trained for a minute each on the source of Python's "
            "standard library, which replaces the paper's corpora. This shows the mechanism; the numbers are not "
            "comparable with the paper's, the order of similar rows may depend on the seed, and deeper models need "
            "more steps than these to be better."
        ),
        texts=MappingProxyType(texts),
        models=MappingProxyType(_tiny_models(ptb.store)),
        positions=20_000,
        stride=4,
        attn_lens=(512, 256, 128),
        recl_start=16,
        recl_longest=160,
        recl_positions=1_000,
        sample_tokens=(500, 500, 1000),
        context=64,
    )


SCALES: dict[str, Callable[[bool], Scale]] = {
    "tiny": lambda has_ptb: tiny(has_ptb=has_ptb),
    "small": lambda _: small(),
    "paper": lambda _: PAPER,
}
"""Scales by name; the argument is True if Penn Treebank has been prepared."""


def get(name: str, *, has_ptb: bool) -> Scale:
    """Return a scale by its name, one of SCALES."""
    return SCALES[name](has_ptb)
