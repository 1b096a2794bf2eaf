"""Tables 1 to 5: the benchmarks."""

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from txlcli.paper import published
from txlcli.workflows.reproduction.runner import Measured, Runner
from txlcli.workflows.reproduction.section import Claim, Grid, Section

# For each table the models that txl has: the part in the paper, and the name of the paper's row.
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
    """Result of one of our models."""

    model: str
    parameters: int
    valid: Measured
    test: Measured


def parts(number: int) -> tuple[str, ...]:
    """Return the models that a table needs."""
    return tuple(part for part, _ in ROWS[number])


def table(runner: Runner, number: int) -> Section:
    """Make one of Tables 1 to 5: the paper's rows, with our numbers where txl has the model."""
    benchmark = published.BENCHMARKS[number - 1]
    our_results = {}
    for part, name in ROWS[number]:
        valid, test = (evaluate_as_recipe(runner, part, split, benchmark.metric) for split in ("valid", "test"))
        our_results[name] = OurResult(part, runner.run(part).parameters, valid, test)
    rows = [_row(row, our_results.get(row.name)) for row in benchmark.rows]
    ours = [(row, our_results[row.name]) for row in benchmark.rows if row.name in our_results]
    return Section(
        name=f"table{number}",
        title=f"Table {number}: {benchmark.title}",
        notes=[runner.scale.description, *_describe_models(runner, parts(number))],
        grids=[Grid(_columns(runner, number), rows, _caption(runner, benchmark.metric))],
        claims=_claims(ours, benchmark.metric),
        data={name: asdict(result) for name, result in our_results.items()},
    )


def evaluate_as_recipe(runner: Runner, part: str, split: str, metric: str) -> Measured:
    """Return a model's result for each seed, with the settings of its recipe, or by windows if it has no memory."""
    values = []
    for seed in runner.seeds:
        run = runner.run(part, seed)
        train = run.settings.train
        windows: dict[str, Any] = {}
        if train.mem_len == 0 and not run.settings.model.recurrent_state:
            windows = {"attn_len": (train.seg_len,), "stride": min(runner.scale.stride, train.seg_len)}
        values.append(float(runner.evaluate(run, split, **windows)["rows"][0][metric]))
    return Measured(tuple(values))


def _columns(runner: Runner, number: int) -> list[str]:
    """Return the columns of our results, with the name of the text if it is not the paper's, and of the paper's."""
    (store,) = {runner.model(part).settings().corpus.store for part in parts(number)}
    text = "" if store == published.BENCHMARKS[number - 1].corpus else f" ({store})"
    ours = ["parameters", f"valid{text}", f"test{text}"]
    return ["system", *ours, "paper: parameters", "paper: valid", "paper: test"]


def _row(row: published.Result, our_result: OurResult | None) -> list[str]:
    ours = ["", "", ""]
    if our_result is not None:
        ours = [f"{our_result.parameters:,}", str(our_result.valid), str(our_result.test)]
    printed = [row.parameters or "-", str(row.valid or "-"), f"{row.test}{row.mark}"]
    return [row.label, *ours, *printed]


def _caption(runner: Runner, metric: str) -> str:
    seeds = len(runner.seeds)
    averaged = "one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds"
    scored = f", the first {runner.scale.positions:,} tokens of each split" if runner.scale.positions else ""
    return f"{metric}, lower is better. Ours: {averaged}{scored}. Empty: a system that txl does not have."


def _describe_models(runner: Runner, parts_: tuple[str, ...]) -> list[str]:
    """Return the models that are trained instead of the paper's."""
    if runner.scale.name == "paper":
        return []
    models = []
    for part in parts_:
        settings = runner.model(part).settings()
        models.append(f"{part}: {settings.model.n_layers} layers on {settings.corpus.store}")
    return [f"Models: {'; '.join(models)}."]


def _claims(ours: list[tuple[published.Result, OurResult]], metric: str) -> list[Claim]:
    """Compare each two rows that txl has, in the paper's order."""
    ranked = sorted(ours, key=lambda pair: pair[0].test)
    claims = []
    for (better, own), (worse, other) in itertools.combinations(ranked, 2):
        if better.test < worse.test:
            text = f"{better.name} is better than {worse.name}"
            claims.append(compare(text, own.test, other.test, f"{better.test} and {worse.test} {metric}"))
    return claims


def compare(text: str, better: Measured, worse: Measured, paper: str | None = None) -> Claim:
    """Check the claim that one number is lower than another; `paper` holds the paper's two numbers."""
    detail = f"here {better} and {worse}"
    return Claim(text, better.mean < worse.mean, f"{paper} in the paper, {detail}" if paper else detail)
