from txlcli.api import load as load
from txlcli.api import make_model as make_model
from txlcli.api import open_store as open_store

__version__: str
