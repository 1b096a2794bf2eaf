"""The forecast of what the training runs of a table cost."""

import pytest

from txlcli.core.measures.gpus import CPU_SHARE
from txlcli.workflows.options import ReproduceOptions
from txlcli.workflows.reproduction import costs
from txlcli.workflows.reproduction.costs import MAX_S
from txlcli.workflows.workspace import Workspace

LATE = 2 * MAX_S


def shares_of_peak(directory, items, times):
    workspace = Workspace(data_dir=directory / "data", runs_dir=directory / "runs", device="cpu")
    result = costs.run(items, ReproduceOptions(), workspace, clock=iter(times).__next__)
    return [row.training_flops / row.seconds / result.peak_flops_per_s for row in result.items]


def test_models_that_are_not_timed_have_the_rate_of_those_that_were(tmp_path):
    # Table 7 has three models, of which the first is timed.
    timed, other = shares_of_peak(tmp_path, ["table7", "table5"], [0, 0, LATE, LATE, LATE])
    assert timed != pytest.approx(CPU_SHARE, rel=1e-6)
    assert other == pytest.approx(timed)


def test_without_time_all_models_have_the_usual_share_of_the_peak(tmp_path):
    assert shares_of_peak(tmp_path, ["table5"], [0, LATE]) == [pytest.approx(CPU_SHARE)]
