"""Texts, models and lengths that take the place of the paper's at each scale: tiny, small and paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.reproduction.models import NO_MEMORY, Model, ablations, by_key, frontier, sentences

SMALL_STEPS = 20_000
SMALL_SHARE = 3


@dataclass(frozen=True)
class CorpusText:
    """A text to prepare."""

    source: str
    """Its corpus."""
    options: PrepareOptions = field(default_factory=PrepareOptions)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A size at which the paper can be reproduced."""

    name: str
    description: str
    """Meaning of its numbers, for the report."""
    texts: Mapping[str, CorpusText]
    """Texts by their stores."""
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


def get(name: str) -> Scale:
    """Return a scale: tiny, small or paper."""
    return SCALES[name]()


def paper() -> Scale:
    """Return the scale of the paper."""
    base = Model("enwik8", "enwik8", ("train.batch_size=24",))  # which divides into longer segments
    models = {
        **ablations(Model("wt103-ablation", "wt103-ablation"), longer_full=176, longer_half=172, longer_batch_size=60),
        **sentences(Model("lm1b-ablation", "lm1b-ablation")),
        **frontier(base, n_memory_tokens=10),
        **by_key(PAPER_MODELS),
    }
    models["ablation-standard"] = models["words-xl"]
    return Scale(
        name="paper",
        description="The paper's own corpora, sizes and steps.",
        texts={name: CorpusText(name) for name in ("enwik8", "text8", "wt103", "lm1b", "ptb")},
        models=models,
        stride=1,
        attn_lens=(3800, 2800, 1800, 800),
        recl_start=100,
        recl_longest=1200,
        recl_positions=10_000,
        sample_tokens=(500, 500, 1000),
        context=512,
    )


PAPER_MODELS = [
    Model("words-xl", "wt103"),
    Model("words-xl-large", "wt103-large"),
    Model("words-adaptive-input", "adaptive-input-wt103"),
    Model("words-qrnn", "qrnn-wt103"),
    Model("words-lstm", "lstm-wt103"),
    Model("bytes-xl-12", "enwik8"),
    Model("bytes-xl-18", "enwik8-18l"),
    Model("bytes-xl-24", "enwik8-24l"),
    Model("bytes-vanilla-12", "vanilla-enwik8"),
    Model("bytes-vanilla-64", "vanilla-enwik8-64l"),
    Model("chars-xl-24", "text8-24l"),
    Model("chars-vanilla-12", "vanilla-enwik8", ("corpus.store=text8",)),
    Model("chars-vanilla-64", "vanilla-enwik8-64l", ("corpus.store=text8",)),
    Model("sentences-xl", "lm1b"),
    Model("sentences-xl-large", "lm1b-large"),
    Model("ptb-xl", "ptb"),
]
"""Models that are recipes of their own, without those of the ablations and the frontier."""


def small() -> Scale:
    """Return the scale of the paper's corpora with smaller models."""
    scale = paper()
    return replace(
        scale,
        name="small",
        description=(
            "The paper's corpora, with a third of its layers and at most 20,000 steps: hours on one data-centre GPU "
            "for most models. The numbers are not the paper's; the order of the rows should be."
        ),
        models={part: _smaller(model) for part, model in scale.models.items()},
        positions=100_000,
        stride=8,
        recl_positions=2_000,
    )


def _smaller(model: Model) -> Model:
    """Return the model with a third of the layers and at most 20,000 steps; the warm-up keeps its share of them."""
    settings = model.settings()
    steps = min(settings.train.max_steps, SMALL_STEPS)
    warmup = settings.train.warmup_steps * steps // settings.train.max_steps
    changes = [f"train.max_steps={steps}", f"train.warmup_steps={warmup}", f"train.valid_every={steps // 10}"]
    if settings.model.has_attention:
        changes.append(f"model.n_layers={-(-settings.model.n_layers // SMALL_SHARE)}")
    return model.changed(model.key, *changes)


def tiny() -> Scale:
    """Return the scale at which the source of Python's standard library replaces every corpus."""
    stdlib = Model("stdlib", "stdlib", TINY_STEPS)
    words = Model("words", "stdlib", ON_WORDS)
    models = {
        # 85 x 12 bytes per step are as much text as 128 x 8: in so short a run, more text would decide the result.
        **ablations(stdlib.changed("ablation", *SHORTEST), longer_full=12, longer_half=12, longer_batch_size=85),
        **sentences(words.changed("short", *SHORT)),
        **frontier(stdlib.changed("frontier", *SHORT, *SMALLER), n_memory_tokens=4),
        **by_key(_tiny_models(stdlib, words)),
    }
    models["ablation-standard"] = models["bytes-xl-18"]
    models["sentences-xl"] = models["short-xl"]
    return Scale(
        name="tiny",
        description=(
            "Tiny scale: models of about a million parameters, trained for a minute each on the source of Python's "
            "standard library, which replaces the paper's corpora. This shows the mechanism; the numbers are not "
            "comparable with the paper's, the order of similar rows may depend on the seed, and deeper models need "
            "more steps than these to be better."
        ),
        texts={
            "stdlib": CorpusText("stdlib"),
            "tiny-words": CorpusText("stdlib", PrepareOptions(name="tiny-words", tokenizer="word", vocab_size=8000)),
            "tiny-chars": CorpusText("stdlib", PrepareOptions(name="tiny-chars", tokenizer="char", min_count=20)),
        },
        models=models,
        positions=20_000,
        stride=4,
        attn_lens=(512, 256, 128),
        recl_start=16,
        recl_longest=160,
        recl_positions=1_000,
        sample_tokens=(500, 500, 1000),
        context=64,
    )


TINY_STEPS = ("train.max_steps=500", "train.valid_every=500", "train.valid_tokens=20000", "log.every=50")
ON_WORDS = ("corpus.store=tiny-words", *TINY_STEPS)
ON_CHARS = ("corpus.store=tiny-chars", *TINY_STEPS)
LESS_DEEP = "model.n_layers=3"
DEEPER = "model.n_layers=6"
WIDER = ("model.d_model=192", "model.n_heads=6", "model.d_inner=768")  # the paper's large models are mainly wider
# Shorter than the context that a model uses after 500 steps (16 to 30 words), so that memory can help.
SHORT = ("train.seg_len=16", "train.mem_len=16", "eval.seg_len=16", "eval.mem_len=16", "train.batch_size=64")
# Models use more than eight bytes after a few hundred steps: recurrence counts for more than the number of losses.
SHORTEST = ("train.seg_len=8", "train.mem_len=8", "eval.seg_len=8", "eval.mem_len=8", "train.batch_size=128")
SMALLER = ("model.n_layers=2", "train.max_steps=300", "train.valid_every=300")
RECURRENT = (
    "model.d_model=128",
    "model.d_hidden=256",
    "model.dropout=0.0",
    "train.seg_len=64",
    "train.batch_size=16",
)
REGULARIZED = ("model.dropout=0.1", "model.variational_dropout=true", "train.average=exponential")


def _tiny_models(stdlib: Model, words: Model) -> list[Model]:
    vanilla = Model("vanilla", "vanilla-stdlib", TINY_STEPS)
    vanilla_chars = Model("vanilla-chars", "vanilla-stdlib", ON_CHARS)
    return [
        words.changed("ptb-xl", *REGULARIZED),
        words.changed("words-xl"),
        words.changed("words-xl-large", *WIDER),
        words.changed("words-adaptive-input", *NO_MEMORY, "model.position=sinusoid"),
        Model("words-qrnn", "qrnn-ptb", (*ON_WORDS, *RECURRENT)),
        Model("words-lstm", "lstm-ptb", (*ON_WORDS, *RECURRENT)),
        stdlib.changed("bytes-xl-12", LESS_DEEP),
        stdlib.changed("bytes-xl-18"),
        stdlib.changed("bytes-xl-24", DEEPER),
        vanilla.changed("bytes-vanilla-12", LESS_DEEP),
        vanilla.changed("bytes-vanilla-64", DEEPER),
        Model("chars-xl-24", "stdlib", ON_CHARS),
        vanilla_chars.changed("chars-vanilla-12", LESS_DEEP),
        vanilla_chars.changed("chars-vanilla-64"),
        words.changed("sentences-xl-large", *SHORT, *WIDER),
    ]


SCALES: dict[str, Callable[[], Scale]] = {"tiny": tiny, "small": small, "paper": paper}
