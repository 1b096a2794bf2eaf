from txlcli.api import PrepareOptions as PrepareOptions
from txlcli.api import TrainOptions as TrainOptions
from txlcli.api import load as load
from txlcli.api import make_model as make_model
from txlcli.api import open_store as open_store
from txlcli.api import prepare as prepare
from txlcli.api import train as train
from txlcli.functional import relative_attention as relative_attention

__version__: str
