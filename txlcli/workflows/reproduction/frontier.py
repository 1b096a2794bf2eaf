"""The frontier: recurrence and its alternatives, with each encoding of positions and each block, at equal cost.

It goes beyond the paper. All models of a scale have the same text, tokens, steps and optimizer, and the same number of
parameters within 1 %.
"""

import dataclasses
import itertools
import operator

from txlcli.paper import published
from txlcli.paper.metrics import bits
from txlcli.workflows.options import EvalOptions
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.scales import BLOCKS, MEMORIES, POSITIONS, frontier_part
from txlcli.workflows.reproduction.section import TABLES, Grid, Measured, Section

PARTS = tuple(frontier_part(*names) for names in itertools.product(MEMORIES, POSITIONS, BLOCKS))
_, *OTHERS = MEMORIES  # than recurrence
LONGER = 4
"""Times the trained M: the longer memory of the second column of recurrence."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Results of a model."""

    parameters: int
    trained: Measured
    """Bits per character with the M of training."""
    longer: Measured | None = None
    """Bits per character with LONGER M; None for a model that cannot use it."""


Cells = dict[tuple[str, str, str], Cell]
"""By memory, encoding of positions and block."""


def frontier(runner: Runner) -> Section:
    """Train and compare all models."""
    cells = {key: _measure(runner, *key) for key in itertools.product(MEMORIES, POSITIONS, BLOCKS)}
    train = runner.settings(PARTS[0]).train
    counts = [cell.parameters for cell in cells.values()]
    notes = [
        f"Models of {min(counts):,} to {max(counts):,} parameters; {train.max_steps:,} steps of "
        f"{train.batch_size * train.seg_len:,} tokens each; L = {train.seg_len}, M = {train.mem_len}.",
        *TABLES["notes"]["frontier"],
    ]
    grids = [*_comparison(runner, cells, train.mem_len), _published()]
    data = {frontier_part(*key): dataclasses.asdict(cell) for key, cell in cells.items()}
    return Section(notes=notes, grids=grids, data=data)


def _measure(runner: Runner, memory: str, position: str, block: str) -> Cell:
    """Evaluate the runs of a model with its memory, and with a longer one if it has recurrence."""
    part = frontier_part(memory, position, block)
    settings = runner.settings(part)
    mem_len = settings.eval.mem_len
    lengths = (mem_len, LONGER * mem_len) if memory == "recurrence" else (mem_len,)
    options = EvalOptions(split="test", mem_len=None if settings.model.recurrent_state else lengths)
    results = runner.evaluate_all(part, options)
    values = zip(*([bits(row.loss_nats) for row in result.rows] for result in results), strict=True)
    return Cell(runner.run(part).parameters, *map(Measured, values))


def _comparison(runner: Runner, cells: Cells, mem_len: int) -> tuple[Grid, Grid]:
    """Return the results, and how much more than recurrence the other memories need, seed by seed."""
    results, differences = [], []
    for block, position in itertools.product(BLOCKS, POSITIONS):
        models = [cells[memory, position, block] for memory in MEMORIES]
        values = [value for cell in models for value in (cell.trained, cell.longer) if value]
        results.append([block, position, *map(str, values)])
        recurrence, *others = (cell.trained.values for cell in models)
        saved = [Measured(tuple(map(operator.sub, other, recurrence))) for other in others]
        in_seeds = [f"{gains} ({sum(gain > 0 for gain in gains.values)} of {len(recurrence)})" for gains in saved]
        differences.append([block, position, *in_seeds])
    caption = f"Bits per character of the test split; lower is better; {runner.averaged}."
    columns = ["block", "positions", "recurrence", f"recurrence, M = {LONGER * mem_len}", *OTHERS]
    saving = "Bits per character that recurrence saves, with the same M; in brackets the seeds in which it saves any."
    return Grid(columns, results, caption), Grid(["block", "positions", *OTHERS], differences, saving)


def _published() -> Grid:
    rows = [
        [result.system, result.parameters, result.corpus, f"{result.value:g} {result.metric}", result.source]
        for result in published.LATER
    ]
    caption = "Published results of such models at the paper's sizes, on the test split, as the sources print them."
    return Grid(["system", "parameters", "corpus", "result", "source"], rows, caption)
