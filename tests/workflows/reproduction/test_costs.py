"""The forecast of what the training runs of a table cost."""

import pytest

from tests.commands.novel import RecordingReporter
from txlcli.workflows.reproduction import scales
from txlcli.workflows.reproduction.costs import MAX_S, Costs
from txlcli.workflows.training.forecast import SHARE_OF_PEAK
from txlcli.workflows.workspace import Workspace


@pytest.fixture
def costs_by(tmp_path):
    workspace = Workspace(
        data_dir=tmp_path / "data", runs_dir=tmp_path / "runs", device="cpu", reporter=RecordingReporter()
    )
    return lambda *times: Costs(scales.get("tiny", has_ptb=False), workspace, seeds=1, clock=iter(times).__next__)


def share_of_peak(costs, item):
    row = costs.of(item)
    return row.training_flops / row.seconds / costs.peak


def test_models_that_are_not_timed_have_the_rate_of_those_that_were(costs_by):
    late = 2 * MAX_S
    costs = costs_by(0, 0, late, late, late)
    share = share_of_peak(costs, "table7")  # three models, of which the first is timed
    assert share != pytest.approx(SHARE_OF_PEAK, rel=1e-6)
    assert share_of_peak(costs, "table5") == pytest.approx(share)


def test_without_time_all_models_have_the_usual_share_of_the_peak(costs_by):
    assert share_of_peak(costs_by(0, 2 * MAX_S), "table5") == pytest.approx(SHARE_OF_PEAK)
