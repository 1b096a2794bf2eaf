"""What stands for each text, model and length of the paper at each scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from txlcli.config import recipe
from txlcli.config.settings import Settings


@dataclass(frozen=True)
class ScaleText:
    """A token store, and how it is made where it is not there."""

    store: str
    source: str
    """Of `txl prepare`."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Of `txl prepare`, by their names in Python."""


@dataclass(frozen=True)
class Model:
    """A training: a recipe with changes."""

    key: str
    """Its word in names of runs."""
    recipe: str
    changes: tuple[str, ...] = ()

    def settings(self) -> Settings:
        """The recipe, resolved."""
        return recipe.load(self.recipe, self.changes)


@dataclass(frozen=True)
class Scale:
    """One of the sizes at which the paper can be made again."""

    name: str
    says: str
    """What its numbers are worth, in plain words."""
    texts: Mapping[str, ScaleText]
    """By store."""
    models: Mapping[str, Model]
    """By the part that they play in the paper."""
    positions: int | None
    """Tokens that an evaluation scores; None is the whole split."""
    stride: int
    """Tokens that a window predicts where models have no memory; 1 is exact."""
    attn_lens: tuple[int, ...]
    """Of Table 9."""
    recl_start: int
    """The first context length of Table 8, and the step."""
    recl_longest: int
    recl_positions: int
    sample_tokens: tuple[int, ...]
    """Lengths of the samples of Appendix E."""
    context: int
    """Tokens that a sample goes on from."""

    def run_name(self, part: str, seed: int) -> str:
        """The run of what plays a part; parts that one model plays share it."""
        return f"{self.name}-{self.models[part].key}-{seed}"


def _model(key: str, name: str, *changes: str) -> tuple[str, Model]:
    return key, Model(key, name, changes)


NO_MEMORY = ("train.mem_len=0", "eval.mem_len=0", "eval.same_length=off")


def _alone(seg_len: int) -> tuple[str, ...]:
    """No recurrence: distances are those of a segment, in evaluation too."""
    return (*NO_MEMORY, f"eval.max_distance={seg_len}")


ALONE_ABSOLUTE = (*NO_MEMORY, "eval.max_distance=none")  # positions that know no distances
HALF = "train.loss_part=half"


def _ablation(
    prefix: str, base: tuple[str, ...], name: str, seg_len: int, longer: tuple[int, int], *more: str
) -> dict[str, Model]:
    """The rows of Tables 6 and 10: changes of one recipe; `more` are those of the longer segments of Table 10."""
    of_a_segment, of_two = f"model.n_positions={seg_len}", f"model.n_positions={2 * seg_len}"
    rows = {
        "xl-full": (),
        "shaw-full": ("model.position=shaw", of_two),
        "xl-half": (HALF,),
        "alone-xl-full": _alone(seg_len),
        "alone-xl-half": (*_alone(seg_len), HALF),
        "alone-shaw-full": (*_alone(seg_len), "model.position=shaw", of_a_segment),
        "alone-shaw-half": (*_alone(seg_len), HALF, "model.position=shaw", of_a_segment),
        "alone-sinusoid-half": (*ALONE_ABSOLUTE, HALF, "model.position=sinusoid"),
        "alone-learned-half": (*ALONE_ABSOLUTE, HALF, "model.position=learned", of_a_segment),
        "alone-xl-full-longer": (*_alone(longer[0]), f"train.seg_len={longer[0]}", *more),
        "alone-xl-half-longer": (*_alone(longer[1]), HALF, f"train.seg_len={longer[1]}", *more),
    }
    return dict(_model(f"{prefix}-{key}", name, *base, *changes) for key, changes in rows.items())


def _sentences(base: tuple[str, ...], name: str, seg_len: int) -> dict[str, Model]:
    """The rows of Table 7."""
    return dict(
        [
            _model("short-xl", name, *base),
            _model("short-shaw", name, *base, "model.position=shaw", f"model.n_positions={2 * seg_len}"),
            _model("short-alone", name, *base, *_alone(seg_len)),
        ]
    )


PAPER_MODELS = {
    **dict(
        [
            _model("words-xl", "wt103"),
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
        ]
    ),
    **_ablation("ablation", (), "wt103-ablation", 128, (176, 172)),
    **_sentences((), "lm1b-ablation", 32),
}
BENCHMARKS = {name: ScaleText(name, name) for name in ("enwik8", "text8", "wt103", "lm1b", "ptb")}

PAPER = Scale(
    name="paper",
    says="The paper's own corpora, sizes and steps.",
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
    """A third of the layers and at most 20,000 steps, of which the warm-up keeps its share."""
    settings = model.settings()
    steps = min(settings.train.max_steps, SMALL_STEPS)
    warmup = settings.train.warmup_steps * steps // settings.train.max_steps
    layers = settings.model.n_layers
    changes = [f"train.max_steps={steps}", f"train.warmup_steps={warmup}", f"train.valid_every={steps // 10}"]
    if not settings.model.recurrent_state:
        changes.append(f"model.n_layers={-(-layers // SMALL_SHARE)}")
    return Model(model.key, model.recipe, (*model.changes, *changes))


def small() -> Scale:
    """The paper's corpora, with a third of its layers and a fraction of its steps."""
    return replace(
        PAPER,
        name="small",
        says=(
            "The paper's corpora, with a third of its layers and at most 20,000 steps: an afternoon of one data-centre "
            "GPU for most models. The numbers are not the paper's; the order of the rows should be."
        ),
        models=MappingProxyType({key: _smaller(model) for key, model in PAPER_MODELS.items()}),
        positions=100_000,
        stride=8,
        recl_positions=2_000,
    )


# At tiny scale the source of Python's standard library stands for every corpus: bytes for enwik8, characters for text8,
# words for the others, and Penn Treebank itself where it has been prepared.
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
WIDER = ("model.d_model=192", "model.n_heads=6", "model.d_inner=768")  # the paper's large models are wider above all
# Shorter than what a model makes use of after 500 steps (16 to 30 words), so that a memory has something to add.
SHORT = ("train.seg_len=16", "train.mem_len=16", "eval.seg_len=16", "eval.mem_len=16", "train.batch_size=64")
TINY_STATE = ("model.d_model=128", "model.d_hidden=256", "model.dropout=0.0", "train.seg_len=64", "train.batch_size=16")


def _tiny_models(ptb: str) -> dict[str, Model]:
    on_ptb = (f"corpus.store={ptb}", *TINY_STEPS)
    # 46 lanes of 22 words are as much text as 64 of 16: so short a training would rather show what more text is worth.
    ablation = _ablation("ablation", (*ON_WORDS, *SHORT), "stdlib", 16, (22, 22), "train.batch_size=46")
    regularised = ("model.dropout=0.1", "model.variational_dropout=true", "train.average=exponential")
    return {
        **dict(
            [
                _model("words-xl", "stdlib", *ON_WORDS),
                _model("words-xl-large", "stdlib", *ON_WORDS, *WIDER),
                _model("words-adaptive-input", "stdlib", *ON_WORDS, *NO_MEMORY, "model.position=sinusoid"),
                _model("words-qrnn", "qrnn-ptb", *ON_WORDS, *TINY_STATE),
                _model("words-lstm", "lstm-ptb", *ON_WORDS, *TINY_STATE),
                _model("bytes-xl-12", "stdlib", *TINY_STEPS, "model.n_layers=3"),
                _model("bytes-xl-18", "stdlib", *TINY_STEPS),
                _model("bytes-xl-24", "stdlib", *TINY_STEPS, DEEPER),
                _model("bytes-vanilla-12", "vanilla-stdlib", *TINY_STEPS, "model.n_layers=3"),
                _model("bytes-vanilla-64", "vanilla-stdlib", *TINY_STEPS, DEEPER),
                _model("chars-xl-24", "stdlib", *ON_CHARS),
                _model("chars-vanilla-12", "vanilla-stdlib", *ON_CHARS, "model.n_layers=3"),
                _model("chars-vanilla-64", "vanilla-stdlib", *ON_CHARS),
                _model("sentences-xl-large", "stdlib", *ON_WORDS, *SHORT, *WIDER),
            ]
        ),
        "ptb-xl": Model(f"ptb-xl-on-{ptb}", "stdlib", (*on_ptb, *regularised)),
        **ablation,
        # One text stands for WikiText-103 and for One Billion Word, so that one model plays several parts.
        "sentences-xl": ablation["ablation-xl-full"],
        "short-xl": ablation["ablation-xl-full"],
        "short-shaw": ablation["ablation-shaw-full"],
        "short-alone": ablation["ablation-alone-xl-full"],
    }


def tiny(*, ptb_is_here: bool) -> Scale:
    """Minutes per table on two processor cores, without a network."""
    ptb = ScaleText("ptb", "ptb") if ptb_is_here else WORDS
    texts = {text.store: text for text in (WORDS, CHARS, ScaleText("stdlib", "stdlib"), ptb)}
    return Scale(
        name="tiny",
        says=(
            "Tiny scale: models of about a million parameters, trained for a minute each on the source of Python's "
            "standard library, which stands for the paper's corpora. This shows the mechanism; the numbers are not "
            "comparable with the paper's, rows that lie close together may change places with the seed, and deeper "
            "models need more steps than these before they pull ahead."
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


SCALES = ("tiny", "small", "paper")


def get(name: str, *, ptb_is_here: bool) -> Scale:
    """The scale of that name, one of SCALES."""
    if name == "paper":
        return PAPER
    return small() if name == "small" else tiny(ptb_is_here=ptb_is_here)
