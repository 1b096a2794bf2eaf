"""Models of the paper's tables and of the frontier, as changes of recipes."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import Settings

NO_MEMORY = ("train.mem_len=0", "eval.mem_len=0", "eval.same_length=off")
HALF_LOSS = "train.loss_part=half"
SHAW = "model.position=shaw"
MEMORIES = ("recurrence", "window", "compressive", "rmt")
POSITIONS = ("relative", "rotary", "alibi", "t5", "none")
BLOCKS: dict[str, tuple[str, ...]] = {"paper": (), "modern": ("model.block=modern", "model.norm=pre")}
"""Changes of each block."""
COMPRESSION_RATE = 4


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

    def changed(self, key: str, *changes: str) -> "Model":
        """Return the model with further changes, of which the last one of a setting counts."""
        last = {}
        for change in (*self.changes, *changes):
            setting, _, _ = change.partition("=")
            last[setting] = change
        return Model(key, self.recipe, tuple(last.values()))


def by_key(models: Iterable[Model]) -> dict[str, Model]:
    """Return models by their keys, which are also their parts in the paper."""
    return {model.key: model for model in models}


def ablations(base: Model, *, longer_full: int, longer_half: int, longer_batch_size: int) -> dict[str, Model]:
    """Return the models of Tables 6 and 10, of the segment length L of `base` and of the longer ones of Table 10."""
    seg_len = base.settings().train.seg_len
    alone = (*NO_MEMORY, f"eval.max_distance={seg_len}")  # trained without recurrence on the distances of a segment
    alone_absolute = (*NO_MEMORY, "eval.max_distance=none")
    one_segment = f"model.n_positions={seg_len}"
    two_segments = f"model.n_positions={2 * seg_len}"
    longer = f"train.batch_size={longer_batch_size}"
    full_longer = (f"eval.max_distance={longer_full}", f"train.seg_len={longer_full}", longer)
    half_longer = (f"eval.max_distance={longer_half}", HALF_LOSS, f"train.seg_len={longer_half}", longer)
    return by_key(
        [
            base.changed("ablation-xl-full"),
            base.changed("ablation-shaw-full", SHAW, two_segments),
            base.changed("ablation-xl-half", HALF_LOSS),
            base.changed("ablation-alone-xl-full", *alone),
            base.changed("ablation-alone-xl-half", *alone, HALF_LOSS),
            base.changed("ablation-alone-shaw-full", *alone, SHAW, one_segment),
            base.changed("ablation-alone-shaw-half", *alone, HALF_LOSS, SHAW, one_segment),
            base.changed("ablation-alone-sinusoid-half", *alone_absolute, HALF_LOSS, "model.position=sinusoid"),
            base.changed(
                "ablation-alone-learned-half", *alone_absolute, HALF_LOSS, "model.position=learned", one_segment
            ),
            base.changed("ablation-alone-xl-full-longer", *NO_MEMORY, *full_longer),
            base.changed("ablation-alone-xl-half-longer", *NO_MEMORY, *half_longer),
        ]
    )


def sentences(base: Model) -> dict[str, Model]:
    """Return the models of Table 7."""
    seg_len = base.settings().train.seg_len
    return by_key(
        [
            base.changed("short-xl"),
            base.changed("short-shaw", SHAW, f"model.n_positions={2 * seg_len}"),
            base.changed("short-alone", *NO_MEMORY, f"eval.max_distance={seg_len}"),
        ]
    )


def frontier(base: Model, *, n_memory_tokens: int) -> dict[str, Model]:
    """Return the models of the frontier: each memory with each encoding of positions and each block.

    They have as many parameters and tokens per step as `base`. Their queries attend to M + (L + 1) / 2 keys on average,
    too, with two exceptions: fewer with memory tokens, and fewer with a window in training, whose segments begin
    without keys.
    """
    models = []
    for memory, position, block in itertools.product(MEMORIES, POSITIONS, BLOCKS):
        part = frontier_part(memory, position, block)
        model = base.changed(part, *_memory_changes(base, memory, n_memory_tokens))
        changes = [f"model.position={position}"]
        if position != "relative":  # the only one with a matrix of position keys, which the others have in d_inner
            settings = _transformer(model)
            changes.append(f"model.d_inner={settings.d_inner + settings.n_heads * settings.d_head // 2}")
        models.append(model.changed(part, *changes, *BLOCKS[block]))
    return by_key(models)


def frontier_part(memory: str, position: str, block: str) -> str:
    """Return the part of a model in the frontier."""
    return f"frontier-{memory}-{position}-{block}"


def _memory_changes(base: Model, memory: str, n_memory_tokens: int) -> list[str]:
    """Return the changes that replace the memory of `base`; the number of tokens per step stays."""
    settings = base.settings()
    seg_len = settings.train.seg_len
    mem_len = settings.train.mem_len
    batch_size = settings.train.batch_size
    both = seg_len + mem_len
    changes = [
        f"eval.seg_len={seg_len}",
        f"eval.mem_len={mem_len}",
        "eval.max_distance=none",
        "eval.same_length=off",
        "train.valid_seg_len=none",
    ]
    if memory == "window":
        window = mem_len + (seg_len + 1) // 2
        changes += [
            f"model.window={window}",
            "train.mem_len=0",
            f"train.seg_len={both}",
            f"train.batch_size={batch_size * seg_len // both}",
            f"eval.mem_len={window - 1}",
        ]
    elif memory == "compressive":
        slots = mem_len // 2
        model = _transformer(base)
        convolution = COMPRESSION_RATE * model.d_model**2  # parameters, which two matrices of d x F give up
        changes += [
            "model.arch=compressive",
            f"model.compressed_len={slots}",
            f"model.compression_rate={COMPRESSION_RATE}",
            f"train.mem_len={slots}",
            f"eval.mem_len={slots}",
            f"model.d_inner={model.d_inner - convolution // (2 * model.d_model)}",
        ]
    elif memory == "rmt":
        changes += [
            "model.arch=rmt",
            f"model.segment_len={both}",
            f"model.n_memory_tokens={n_memory_tokens}",
            "train.mem_len=0",
            f"train.seg_len={2 * both}",
            f"train.batch_size={batch_size * seg_len // (2 * both)}",
            f"eval.seg_len={both}",
            "eval.mem_len=0",
        ]
    return changes


def _transformer(model: Model) -> TransformerSettings:
    settings = model.settings().model
    assert isinstance(settings, TransformerSettings)
    return settings
