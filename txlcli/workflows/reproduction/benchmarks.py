"""Tables 1 to 5, the benchmarks, and Table 7, recurrence and encodings on independent sentences."""

import itertools
from dataclasses import asdict, dataclass

from txlcli.paper import published
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import TABLES, Claim, Grid, Measured, Section, check_claims, parts


@dataclass(frozen=True)
class OurResult:
    """Result of one of our models."""

    model: str
    parameters: int
    valid: Measured
    test: Measured


def table(runner: Runner, number: int) -> Section:
    """Make one of Tables 1 to 5: the paper's rows, with our numbers where txl has the model."""
    benchmark = published.BENCHMARKS[number - 1]
    metric, our_results = benchmark.metric, {}
    names = TABLES["parts"][f"table{number}"]
    for part, name in names.items():
        valid, test = (runner.measure(part, split, metric) for split in ("valid", "test"))
        our_results[name] = OurResult(part, runner.run(part).parameters, valid, test)
    settings = {part: runner.settings(part) for part in names}
    (store,) = {model.corpus.store for model in settings.values()}
    text = "" if store == benchmark.corpus else f" ({store})"  # the text, if it is not the paper's
    columns = ["system", "parameters", f"valid{text}", f"test{text}"]
    columns += ["paper: parameters", "paper: valid", "paper: test"]
    scored = f", the first {runner.scale.positions:,} tokens of each split" if runner.scale.positions else ""
    caption = f"{metric}, lower is better. Ours: {runner.averaged}{scored}. Empty: a system that txl does not have."
    notes = [runner.scale.description]
    if runner.scale.name != "paper":
        models = [f"{part}: {model.model.n_layers} layers on {store}" for part, model in settings.items()]
        notes.append(f"Models: {'; '.join(models)}.")
    return Section(
        notes=notes,
        grids=[Grid(columns, [_row(row, our_results.get(row.name)) for row in benchmark.rows], caption)],
        claims=_claims(benchmark, our_results),
        data={name: asdict(result) for name, result in our_results.items()},
    )


def _row(row: published.Result, our_result: OurResult | None) -> list[str]:
    ours = ["", "", ""]
    if our_result is not None:
        ours = [f"{our_result.parameters:,}", str(our_result.valid), str(our_result.test)]
    return [row.label, *ours, row.parameters or "-", str(row.valid or "-"), f"{row.test}{row.mark}"]


def _claims(benchmark: published.Table[published.Result], our_results: dict[str, OurResult]) -> list[Claim]:
    """Compare each two rows that txl has, in the order of the paper's results."""
    ranked = sorted((row for row in benchmark.rows if row.name in our_results), key=lambda row: row.test)
    return [
        Claim.of_lower(
            f"{better.name} is better than {worse.name}",
            our_results[better.name].test,
            our_results[worse.name].test,
            f"{better.test} and {worse.test} {benchmark.metric} in the paper, ",
        )
        for better, worse in itertools.combinations(ranked, 2)
        if better.test < worse.test
    ]


def table7(runner: Runner) -> Section:
    """Compare recurrence and encodings on One Billion Word, whose sentences are independent of each other."""
    perplexities = {part: runner.measure(part, "test", "ppl") for part in parts("table7")}
    printed = published.TABLES[7].rows
    rows = [[row.name, str(own), str(row.ppl)] for row, own in zip(printed, perplexities.values(), strict=True)]
    caption = "Perplexity on the test split; the paper does not name the split."
    return Section(
        notes=[runner.scale.description],
        grids=[Grid(["method", "ppl", "paper: ppl"], rows, caption)],
        claims=check_claims("table7", perplexities),
        data={part: perplexity.values for part, perplexity in perplexities.items()},
    )
