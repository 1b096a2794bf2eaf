"""Registration of an architecture from outside the package."""

from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.core.measures import cost
from txlcli.core.measures.cost import LayerProducts
from txlcli.core.model import registry as models
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading import registry as readers
from txlcli.core.reading.reader import Reader, StateReader


def register_architecture(
    name: str,
    *,
    settings: type[ModelSettings],
    model: type[LanguageModel],
    products: type[LayerProducts] = LayerProducts,
    make_reader: type[Reader] = StateReader,
) -> None:
    """Add an architecture, so that recipes accept `model.arch` = name and all commands use its model.

    Args:
        name: value of `model.arch`.
        settings: class of the [model] section.
        model: made from these settings and the vocabulary size.
        products: formulas of its operations, for `--dry-run` and `txl speed`; by default, each token is multiplied by
            each matrix of the layers.
        make_reader: by default the memory is what `model.forward` returns; for subclasses of TransformerXL give
            `core.reading.decoder.Decoder`.

    Raises:
        ValueError: the name is taken.
    """
    if name in MODELS:
        raise ValueError(f'the architecture "{name}" is registered already')
    MODELS[name] = settings
    models.ARCHITECTURES[name] = model
    readers.READERS[name] = make_reader
    cost.ARCHITECTURES[name] = products
