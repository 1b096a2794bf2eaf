"""The frontier: recurrence and its alternatives, with each encoding of positions and each block, at equal cost.

It goes beyond the paper. All models of a scale have the same text, tokens, steps and optimizer, and the same number of
parameters within 1 %.
"""

import dataclasses
import itertools

from txlcli.paper import published
from txlcli.workflows.reproduction.runner import Measured, Runner
from txlcli.workflows.reproduction.scales import BLOCKS, MEMORIES, POSITIONS, frontier_part
from txlcli.workflows.reproduction.section import Grid, Section

PARTS = tuple(frontier_part(*names) for names in itertools.product(MEMORIES, POSITIONS, BLOCKS))
LONGER = 4
"""Times the trained M: the longer memory of the second column of recurrence."""
METRIC = "bpc"
DESCRIPTIONS = {
    "recurrence": "segments of L tokens with a memory of M, as in the paper",
    "window": "no recurrence: segments of L + M tokens, half as many at once; attention to the last M + L / 2 tokens",
    "compressive": "a memory of M / 2 tokens, and M / 2 slots of older ones, four to a slot (Rae et al. 2020)",
    "rmt": "memory tokens between segments of L + M tokens, gradients through two segments (Bulatov et al. 2022)",
}
LIMITS = (
    "What this can show: whether an order holds for models of this size after these steps, in all seeds or in some. "
    "What it cannot show: that the order stays for larger models and longer trainings. The learning rate and all other "
    "settings are the same for all models; they were chosen for the paper's block. A difference smaller than the "
    "deviation over the seeds decides nothing."
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """Results of a model."""

    parameters: int
    trained: Measured
    """Bits per character with the M of training."""
    longer: Measured | None
    """Bits per character with LONGER M; None for a model that cannot use it."""


def frontier(runner: Runner) -> Section:
    """Train and compare all models."""
    of_recurrence = [frontier_part("recurrence", *names) for names in itertools.product(POSITIONS, BLOCKS)]
    cells = {part: _measure(runner, part, is_longer_useful=part in of_recurrence) for part in PARTS}
    train = runner.model(frontier_part("recurrence", POSITIONS[0], BLOCKS[0])).settings().train
    counts = [cell.parameters for cell in cells.values()]
    notes = [
        runner.scale.description,
        f"Models of {min(counts):,} to {max(counts):,} parameters; {train.max_steps:,} steps of "
        f"{train.batch_size * train.seg_len:,} tokens each; L = {train.seg_len}, M = {train.mem_len}.",
        *(f"{name}: {text}." for name, text in DESCRIPTIONS.items()),
        LIMITS,
    ]
    return Section(
        name="frontier",
        title="Frontier: recurrence and its alternatives",
        notes=notes,
        grids=[_results(runner, cells, train.mem_len), _differences(cells), _published()],
        data={part: dataclasses.asdict(cell) for part, cell in cells.items()},
    )


def _measure(runner: Runner, part: str, *, is_longer_useful: bool) -> Cell:
    """Evaluate the runs of a model with its memory, and with a longer one if that is useful."""
    settings = runner.model(part).settings()
    mem_len = settings.eval.mem_len
    lengths = (mem_len, LONGER * mem_len) if is_longer_useful else (mem_len,)
    options = {} if settings.model.recurrent_state else {"mem_len": lengths}
    values: list[list[float]] = [[] for _ in lengths]
    for seed in runner.seeds:
        rows = runner.evaluate(runner.run(part, seed), "test", **options)["rows"]
        for column, row in zip(values, rows, strict=True):
            column.append(float(row[METRIC]))
    trained, *longer = (Measured(tuple(column)) for column in values)
    return Cell(runner.run(part).parameters, trained, longer[0] if longer else None)


def _results(runner: Runner, cells: dict[str, Cell], mem_len: int) -> Grid:
    columns = ["block", "positions"]
    for memory in MEMORIES:
        columns.append(memory)
        if cells[frontier_part(memory, POSITIONS[0], BLOCKS[0])].longer:
            columns.append(f"{memory}, M = {LONGER * mem_len}")
    rows = []
    for block, position in itertools.product(BLOCKS, POSITIONS):
        row = [block, position]
        for memory in MEMORIES:
            cell = cells[frontier_part(memory, position, block)]
            row += [str(value) for value in (cell.trained, cell.longer) if value]
        rows.append(row)
    seeds = len(runner.seeds)
    averaged = "one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds"
    scored = f", its first {runner.scale.positions:,} tokens" if runner.scale.positions else ""
    return Grid(columns, rows, f"Bits per character of the test split{scored}; lower is better; {averaged}.")


def _differences(cells: dict[str, Cell]) -> Grid:
    """Subtract the results of recurrence from those of the other memories, seed by seed."""
    others = [memory for memory in MEMORIES if memory != "recurrence"]
    rows = []
    for block, position in itertools.product(BLOCKS, POSITIONS):
        recurrence = cells[frontier_part("recurrence", position, block)].trained.values
        row = [block, position]
        for memory in others:
            values = cells[frontier_part(memory, position, block)].trained.values
            gains = Measured(tuple(value - own for value, own in zip(values, recurrence, strict=True)))
            row.append(f"{gains} ({sum(gain > 0 for gain in gains.values)} of {len(gains.values)})")
        rows.append(row)
    caption = "Bits per character that recurrence saves, with the same M; in brackets the seeds in which it saves any."
    return Grid(["block", "positions", *others], rows, caption)


def _published() -> Grid:
    rows = [
        [result.system, result.parameters, result.corpus, f"{result.value:g} {result.metric}", result.source]
        for result in published.LATER
    ]
    caption = "Published results of such models at the paper's sizes, on the test split, as the sources print them."
    return Grid(["system", "parameters", "corpus", "result", "source"], rows, caption)
