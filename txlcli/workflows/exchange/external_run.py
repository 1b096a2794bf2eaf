"""Opens a model of Hugging Face Transformers from a folder or a GGUF file, so that `txl eval` scores texts with it.

Nothing is downloaded, and code in the folder runs only if the user says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlcli.config.settings import CorpusSettings, EvalSettings, SameLength, Settings
from txlcli.config.train_settings import Precision, TrainSettings
from txlcli.core.kernels.device import check_precision, pick_device
from txlcli.core.kernels.modes import DTYPES
from txlcli.data.vocabulary import count_words
from txlcli.errors import ExternalModelError, reason_of
from txlcli.runs.loading import OpenModel
from txlcli.workflows.exchange import huggingface
from txlcli.workflows.exchange.external_model import TRIED, ExternalModel
from txlcli.workflows.exchange.external_vocab import ExternalVocab
from txlcli.workflows.exchange.options import GGUF, HUGGING_FACE

SEG_LEN = 512
"""Length of segments, and of the memory, by default."""
OLDEST = 5
"""Oldest major version of Transformers whose models are read."""
NO_TOKENIZER = "instantiate the backend tokenizer"
"""Words of the error of Transformers for a folder without the files of a tokenizer."""
NOT_CAUSAL = "Unrecognized configuration class"
"""Words of the error of Transformers for a model that is not in its class of causal language models."""
NO_WEIGHTS = "no file named"
"""Words of the error of Transformers for a folder without weights."""
ADAPTER = "adapter_config.json"
"""File of a folder that PEFT writes, which holds changes of another model's weights."""
MARKS = (b" @-@ ", b" @,@ ", b" @.@ ")
"""Marks of WikiText for a hyphen, a comma or a point within a word."""


@dataclass(frozen=True, kw_only=True)
class OpenExternal(OpenModel):
    """A model of Transformers with its weights on a device."""

    model: ExternalModel
    vocab: ExternalVocab

    def remarks(self, data: bytes) -> tuple[str, ...]:
        conditions = self.facts["conditions"]
        listed = "; ".join(f"{name.replace('_', ' ')} ({how})" for name, how in conditions.items())
        words, lines = count_words(data, 0, self.vocab.tokenizer, has_boundary=True)
        characters = len(data.decode())
        remarks = [
            f"Conditions that hold: {listed}.",
            f"The text has {words:,} words and {lines:,} line ends (ppl/word counts both), {characters:,} characters, "
            f"{len(data):,} bytes.",
        ]
        boundary = self.vocab.boundary
        if boundary is None:
            remarks.append("Nothing precedes the first token, which is not scored.")
        else:
            remarks.append(f"The text begins after {self.vocab.symbol(boundary)}, windows within it do not.")
        if self.model.settings.obstacle is not None:
            remarks.append(
                f"No cache is carried from one segment to the next: the model has {self.model.settings.obstacle}."
            )
        unused = self.facts["unused_weights"]
        if unused:
            remarks.append(f"{len(unused):,} weights in its files, such as {unused[0]}, are not part of the model.")
        marks = sum(data.count(mark) for mark in MARKS)
        unknown = data.count(b"<unk>")
        if marks or unknown:
            remarks.append(
                f"The text is scored as it is written, with {marks:,} marks as in WikiText (@-@, @,@, @.@) and "
                f"{unknown:,} <unk>: it is not detokenized, and models of raw text predict it less well."
            )
        return tuple(remarks)


def open_external(name: str, *, device: str, precision: Precision | None, trust_remote_code: bool) -> OpenExternal:
    """Open the model in hf:FOLDER, or of a GGUF file, with its weights on the device, in fp32 by default.

    Raises:
        ExternalModelError: there is none, it cannot be opened, or it needs code that may not run.
    """
    torch_device = pick_device(device)
    precision = precision or "fp32"
    check_precision(precision, torch_device)
    path = Path(name.removeprefix(HUGGING_FACE))
    _check_path(path)
    tokenizer, network, unused = _load(path, precision, trust_remote_code=trust_remote_code)
    network = network.to(torch_device).eval()
    model = ExternalModel(network, str(path)).on(precision=precision)
    vocab = ExternalVocab(tokenizer, model.vocab_size, str(path))
    class_name = type(network).__name__
    parameters = sum(parameter.numel() for parameter in model.parameters())
    conditions = {
        "strict_causality": f"tried on {TRIED} ids",
        "normalized_distribution": f"softmax over {model.vocab_size:,} ids",
        "score_before_update": "no weight changes",
        "one_pass_from_left_to_right": "each token is scored once",
    }
    return OpenExternal(
        subject=path,
        settings=_settings(model),
        model=model,
        vocab=vocab,
        precision=precision,
        weights_title=f"{class_name}, {parameters:,} parameters",
        facts={
            "run": str(path),
            "step": None,
            "model": class_name,
            "parameters": parameters,
            "conditions": conditions,
            "unused_weights": unused,
        },
    )


def _load(path: Path, precision: Precision, *, trust_remote_code: bool) -> tuple[Any, Any, list[str]]:
    """Return the tokenizer, the model, and the names of weights that are not part of it."""
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    directory = path
    if path.suffix.lower() == GGUF:
        options["gguf_file"] = path.name
        directory = path.parent
    try:
        transformers = _import_transformers(path)
        tokenizer = _load_tokenizer(transformers, path, directory, options)
        network, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=DTYPES[precision],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # for an error of one line, below
            **options,
        )
    except ModuleNotFoundError as error:
        raise ExternalModelError(f'{path}: the package {error.name} is missing; pip install ".[hf]"') from error
    except ExternalModelError:
        raise
    except Exception as error:  # of Transformers, or of the code of the model
        raise _not_opened(path, error, trust_remote_code=trust_remote_code) from error
    missing = sorted([*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])])
    if missing:
        raise ExternalModelError(
            f"{path}: its weights lack {missing[0]} in the size of config.json ({len(missing)} in all), which would be "
            "random; give a folder with all weights of a causal language model"
        )
    return tokenizer, network, sorted(loaded["unexpected_keys"])


def _load_tokenizer(transformers: Any, path: Path, directory: Path, options: dict[str, Any]) -> Any:
    """Return the tokenizer of a model; if there is none, say which files are missing."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **options)
    except ValueError as error:
        if NO_TOKENIZER not in str(error):
            raise
        raise _without_tokenizer(path) from error
    if len(tokenizer) == len(tokenizer.all_special_ids):  # what Transformers makes for GPT-2 without these files
        raise _without_tokenizer(path)
    return tokenizer


def _without_tokenizer(path: Path) -> ExternalModelError:
    """Return the error for a folder without the files of a tokenizer."""
    return ExternalModelError(
        f"{path}: has no tokenizer that Transformers opens; add the tokenizer files of the model, such as "
        "tokenizer.json or tokenizer.model"
    )


def _settings(model: ExternalModel) -> Settings:
    """Return settings with segments of L, and as much memory if the model can carry its cache: M + L fit in it."""
    own = model.settings
    longest = own.n_positions or 2 * SEG_LEN
    seg_len = min(SEG_LEN, longest)
    mem_len = 0
    same_length: SameLength = "off"
    if own.recurrent_state:
        same_length = "m"
    if own.obstacle is None and not own.recurrent_state:
        seg_len = min(SEG_LEN, longest // 2)
        mem_len = seg_len
    evaluation = EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=1, same_length=same_length)
    train = TrainSettings(seg_len=seg_len, mem_len=0, batch_size=1, max_steps=1)
    return Settings(corpus=CorpusSettings(store="external"), model=own, train=train, eval=evaluation)


def _import_transformers(path: Path) -> Any:
    """Return the package transformers, which prints errors only; reject an older one."""
    import transformers
    from transformers.utils import logging

    if int(transformers.__version__.split(".")[0]) < OLDEST:
        raise ExternalModelError(
            f'{path}: needs Transformers {OLDEST}, and {transformers.__version__} is installed; pip install ".[hf]"'
        )
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def _check_path(path: Path) -> None:
    """Reject a path without a model."""
    fault = None
    if path.suffix.lower() == GGUF:
        if not path.is_file():
            fault = "no such file"
    elif not path.is_dir():
        fault = "no such folder"
    elif not (path / "config.json").is_file():
        if (path / ADAPTER).is_file():
            raise ExternalModelError(
                f"{path}: has only an adapter ({ADAPTER}); merge it into its model with PEFT (merge_and_unload), and "
                "save that with its tokenizer"
            )
        fault = "has no config.json, which every model of Transformers has"
    if fault is not None:
        raise ExternalModelError(
            f"{path}: {fault}; give a folder with config.json, weights and tokenizer, or a {GGUF} file"
        )
    huggingface.reject_own_export(path)


def _not_opened(path: Path, error: Exception, *, trust_remote_code: bool) -> ExternalModelError:
    """Return the error for a model that Transformers does not open."""
    if "trust_remote_code" in str(error) and not trust_remote_code:
        return ExternalModelError(
            f"{path}: the model has code of its own, which txl does not run; read the code, and add "
            "`trust_remote_code` if you trust it"
        )
    if NOT_CAUSAL in str(error):
        return ExternalModelError(
            f"{path}: Transformers has no causal language model for its config.json, as for an encoder, or an encoder "
            "with a decoder; give a model that predicts the next token, such as GPT-2 or Llama"
        )
    if NO_WEIGHTS in str(error):
        return ExternalModelError(f"{path}: has no weights; add the files of the model, such as model.safetensors")
    return ExternalModelError(
        f"{path}: Transformers does not open the model ({reason_of(error)}); give a folder that it opens"
    )
