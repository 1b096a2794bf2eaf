"""The Python interface: prepare a corpus, train, load a run, score and generate text, evaluate, make a model.

Names in this package are stable: they change only with a new minor version, and the changelog says so.
"""

from txlcli.api.functions import difference, load, make_model, open_store, prepare, recl, train
from txlcli.api.run import LoadedRun, Sampling, TextScore
from txlcli.report.run_report import ReportOptions
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.difference_options import DifferenceOptions
from txlcli.workflows.exchange.options import ExportOptions
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.probe_options import ProbeOptions
from txlcli.workflows.recl_options import ReclOptions
from txlcli.workflows.speed_options import SpeedOptions
from txlcli.workflows.training.options import TrainOptions

__all__ = [
    "AttentionOptions",
    "DifferenceOptions",
    "ExportOptions",
    "LoadedRun",
    "PrepareOptions",
    "ProbeOptions",
    "ReclOptions",
    "ReportOptions",
    "Sampling",
    "SpeedOptions",
    "TextScore",
    "TrainOptions",
    "difference",
    "load",
    "make_model",
    "open_store",
    "prepare",
    "recl",
    "train",
]
