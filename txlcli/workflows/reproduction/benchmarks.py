"""Tables 1 to 5: the benchmarks."""

import itertools
from dataclasses import asdict, dataclass

from txlcli.paper import published
from txlcli.workflows.reproduction.report import Claim, Grid, Section
from txlcli.workflows.reproduction.workshop import Measured, Workshop

# For each table the models that txl trains: the word of a model, and the name of its row in the paper.
ROWS: dict[int, tuple[tuple[str, str], ...]] = {
    1: (
        ("words-qrnn", "QRNN"),
        ("words-xl", "Transformer-XL Standard"),
        ("words-adaptive-input", "Adaptive Input"),
        ("words-xl-large", "Transformer-XL Large"),
    ),
    2: (
        ("bytes-vanilla-12", "12L Transformer"),
        ("bytes-xl-12", "12L Transformer-XL"),
        ("bytes-vanilla-64", "64L Transformer"),
        ("bytes-xl-18", "18L Transformer-XL"),
        ("bytes-xl-24", "24L Transformer-XL"),
    ),
    3: (
        ("chars-vanilla-12", "12L Transformer"),
        ("chars-vanilla-64", "64L Transformer"),
        ("chars-xl-24", "24L Transformer-XL"),
    ),
    4: (("sentences-xl", "Transformer-XL Base"), ("sentences-xl-large", "Transformer-XL Large")),
    5: (("ptb-xl", "Transformer-XL"),),
}


@dataclass(frozen=True)
class OurResult:
    """What one of our models reaches."""

    model: str
    parameters: int
    valid: Measured
    test: Measured


def models(number: int) -> tuple[str, ...]:
    """The models that a table needs."""
    return tuple(key for key, _ in ROWS[number])


def make(shop: Workshop, number: int) -> Section:
    """One of Tables 1 to 5: every row of the paper's, with our numbers where txl has the model."""
    table = published.BENCHMARKS[number - 1]
    our_results = {}
    for key, name in ROWS[number]:
        splits = {split: _over_seeds(shop, key, split, table.metric) for split in ("valid", "test")}
        our_results[name] = OurResult(key, shop.run(key).parameters, **splits)
    rows = [_row(row, our_results.get(row.name)) for row in table.rows]
    ours = [(row, our_results[row.name]) for row in table.rows if row.name in our_results]
    return Section(
        name=f"table{number}",
        title=f"Table {number}: {table.title}",
        scale=shop.scale.name,
        notes=[shop.scale.says, *_stand_ins(shop, models(number))],
        grids=[Grid(_columns(shop, number), rows, _caption(shop, table.metric))],
        claims=_claims(ours, table.metric),
        data={name: asdict(one) for name, one in our_results.items()},
    )


def read_as_recipe(shop: Workshop, key: str, seed: int, split: str, metric: str) -> float:
    """A model's result, read as its recipe says; windows where it has no memory."""
    run = shop.run(key, seed)
    train = run.settings.train
    windows = {}
    if train.mem_len == 0 and not run.settings.model.recurrent_state:
        windows = {"attn_len": str(train.seg_len), "stride": min(shop.scale.stride, train.seg_len)}
    return float(shop.evaluated(run, split, **windows)["rows"][0][metric])


def _columns(shop: Workshop, number: int) -> list[str]:
    """Ours, with the text that stands for the paper's where it is another, then the paper's."""
    (store,) = {shop.model(key).settings().corpus.store for key in models(number)}
    of_text = "" if store == published.BENCHMARKS[number - 1].corpus else f" ({store})"
    ours = ["parameters", f"valid{of_text}", f"test{of_text}"]
    return ["system", *ours, "paper: parameters", "paper: valid", "paper: test"]


def _over_seeds(shop: Workshop, key: str, split: str, metric: str) -> Measured:
    return Measured(tuple(read_as_recipe(shop, key, seed, split, metric) for seed in shop.seeds))


def _row(row: published.Result, our_result: OurResult | None) -> list[str]:
    ours = ["", "", ""]
    if our_result is not None:
        ours = [f"{our_result.parameters:,}", str(our_result.valid), str(our_result.test)]
    printed = [row.parameters or "-", str(row.valid or "-"), f"{row.test}{row.mark}"]
    return [row.label, *ours, *printed]


def _caption(shop: Workshop, metric: str) -> str:
    seeds = len(shop.seeds)
    said = f"{metric}, lower is better. Ours: {'one seed' if seeds == 1 else f'mean and deviation of {seeds} seeds'}"
    scored = f", the first {shop.scale.positions:,} tokens of each split" if shop.scale.positions else ""
    return f"{said}{scored}. Empty: a system that txl does not have."


def _stand_ins(shop: Workshop, keys: tuple[str, ...]) -> list[str]:
    """What is trained for each row."""
    if shop.scale.name == "paper":
        return []
    said = []
    for key in keys:
        settings = shop.model(key).settings()
        said.append(f"{key}: {settings.model.n_layers} layers on {settings.corpus.store}")
    return [f"Models: {'; '.join(said)}."]


def _claims(ours: list[tuple[published.Result, OurResult]], metric: str) -> list[Claim]:
    """The order of the paper's rows, for each two that txl has."""
    ranked = sorted(ours, key=lambda pair: pair[0].test)
    claims = []
    for (better, own), (worse, other) in itertools.combinations(ranked, 2):
        if better.test < worse.test:
            text = f"{better.name} is ahead of {worse.name}"
            claims.append(compared(text, own.test, other.test, f"{better.test} and {worse.test} {metric}"))
    return claims


def compared(text: str, better: Measured, worse: Measured, paper: str | None = None) -> Claim:
    """A claim that one number is lower than another; `paper` has the paper's two."""
    detail = f"here {better} and {worse}"
    return Claim(text, better.mean < worse.mean, f"{paper} in the paper, {detail}" if paper else detail)
