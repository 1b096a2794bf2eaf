"""Small training runs, and what tests ask of their reports."""

import math

import numpy as np
import torch

from tests.core.builders import V, draw_tokens, model_settings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import new_model
from txlcli.core.reading.documents import document_spans
from txlcli.core.reading.scoring import scored_stream
from txlcli.core.training.distributed import SINGLE_PROCESS
from txlcli.core.training.loop import Training
from txlcli.core.training.reports import StepReport, ValidReport
from txlcli.core.training.saving import Saver
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.validation import ValidationText

CPU = torch.device("cpu")
LANES, LANE_LEN, L, M = 6, 11, 5, 7  # segments of 5, 5 and 1: three steps are an epoch
DOCUMENT = 4  # tokens of a document, with reset_at_documents


RISING = {"optimizer": "sgd", "lr": 3.0, "clip": None, "schedule": "constant", "valid_every": 1, "max_steps": 12}
"""Steps so long that validation losses fall and rise."""


def draw_split(count, *, seed):
    return draw_tokens(1, count, seed=seed)[0].numpy().astype(np.uint8)


def train_settings(**changed):
    return TrainSettings(
        **{
            "seg_len": L,
            "mem_len": M,
            "batch_size": LANES,
            "max_steps": 4,
            "lr": 0.01,
            "valid_every": 100,
            "valid_batch_size": 2,
            **changed,
        }
    )


def new_training(
    directory,
    *,
    cls=Training,
    ids=None,
    valid=True,
    model=None,
    dropout=0.0,
    starts=None,
    shape=None,
    world=SINGLE_PROCESS,
    saver=None,
    **changed,
):
    """Return a new training on a text that fills the lanes exactly."""
    settings = train_settings(**changed)
    directory.mkdir(exist_ok=True, parents=True)
    if ids is None:
        ids = draw_split(LANES * LANE_LEN + 1, seed=5)
    if model is None:
        settings_of_model = model_settings(**{"dropout": dropout, "attention_dropout": dropout, **(shape or {})})
        model = new_model(settings_of_model, V, seed=settings.seed, device=CPU)
    spans = ()
    if settings.reset_at_documents:
        starts = np.arange(0, len(ids), DOCUMENT)
        spans = document_spans(np.arange(0, 31, DOCUMENT), None, 30)
    split = ValidationText(*scored_stream(draw_split(31, seed=6), None), spans) if valid else None
    segments = TrainingSegments(ids, settings, starts, shuffles=not settings.reset_at_documents)
    return cls(model, settings, segments, split, saver or Saver(directory, {"recipe": "tiny"}), world)


def run(training, *, report_every=1, until=math.inf, **limits):
    """Return all reports, with a stop once `until` steps are done."""
    return list(training.run(report_every=report_every, should_stop=lambda: training.step >= until, **limits))


def reports_of(training, **limits):
    return training.run(report_every=1, should_stop=lambda: False, **limits)


def losses_of(reports):
    return [report.loss_nats for report in reports]


def assert_equal(given, expected):
    """Assert that tensors are equal bit for bit, by name."""
    assert given.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(given[name], tensor), name


def steps_of(reports):
    return [report for report in reports if isinstance(report, StepReport)]


def valids_of(reports):
    return [report for report in reports if isinstance(report, ValidReport)]


def weights(training):
    return {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
