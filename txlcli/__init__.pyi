from txlcli.api import AttentionOptions as AttentionOptions
from txlcli.api import DifferenceOptions as DifferenceOptions
from txlcli.api import ExportOptions as ExportOptions
from txlcli.api import PrepareOptions as PrepareOptions
from txlcli.api import ProbeOptions as ProbeOptions
from txlcli.api import ReclOptions as ReclOptions
from txlcli.api import ReportOptions as ReportOptions
from txlcli.api import SpeedOptions as SpeedOptions
from txlcli.api import TrainOptions as TrainOptions
from txlcli.api import difference as difference
from txlcli.api import load as load
from txlcli.api import make_model as make_model
from txlcli.api import open_store as open_store
from txlcli.api import prepare as prepare
from txlcli.api import recl as recl
from txlcli.api import train as train
from txlcli.functional import relative_attention as relative_attention

__version__: str
THREADS_SLEEP: bool
