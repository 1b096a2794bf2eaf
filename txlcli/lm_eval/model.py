"""A run as a model of lm-evaluation-harness (the package lm_eval): log-likelihoods and greedy continuations.

Each document is read from an empty memory, which is carried along it. Only this module imports lm_eval.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs
from numpy.typing import NDArray
from tqdm import tqdm

from txlcli.config.train_settings import Precision
from txlcli.core.reading import sampling
from txlcli.core.reading.documents import Document, DocumentScore, score_documents, score_in_windows
from txlcli.core.reading.scoring import scored_stream
from txlcli.core.reading.windows import windows_at_once
from txlcli.errors import UnknownNameError, UsageError, VocabularyError
from txlcli.runs import run_directory
from txlcli.runs.loading import open_run
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.settings import check_options
from txlcli.workflows.generate import until_stop

GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")
SEED = 1111


class HarnessModel(LM):
    """A run, as lm-evaluation-harness uses it.

    Args:
        run: name or directory of the run; None is the most recent one.
        runs_dir: directory of the runs.
        precision: of matrix products; None is that of training.
        device: cpu, or cuda, which is the CPU on a machine without a GPU, as for other models of the harness; None is
            cuda. It is the first GPU that CUDA_VISIBLE_DEVICES names.
        batch_size: number of documents that are read side by side.
        mem_len: memory length M; None is that of the recipe.
        seg_len: segment length L; None is that of the recipe.
        attn_len: length N of disjoint windows instead of a memory; None is the trained L if there is no memory.
    """

    def __init__(
        self,
        run: object = None,
        *,
        runs_dir: object = "runs",
        precision: Precision | None = None,
        device: str | None = None,
        batch_size: int | str = 1,
        mem_len: int | None = None,
        seg_len: int | None = None,
        attn_len: int | None = None,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdecimal():
            raise UsageError(f"batch_size={batch_size}: give the number of documents that are read side by side")
        options = EvalOptions(
            mem_len=None if mem_len is None else (mem_len,),
            attn_len=None if attn_len is None else (attn_len,),
            seg_len=seg_len,
            batch_size=int(batch_size),
        )
        if device in (None, "cuda", "cuda:0"):
            device = "auto"
        found = run_directory.find(None if run is None else str(run), Path(str(runs_dir)))
        self._opened = open_run(found, device=device, precision=precision)
        check_options(self._opened, options)
        self._vocab = self._opened.vocab
        self._vocab.check_has_text()
        settings = self._opened.run.settings
        changes = {} if mem_len is None else {"mem_len": mem_len}
        self._settings = options.apply_to(settings.evaluation_settings(**changes))
        self._in_windows = attn_len is not None or not (self._settings.mem_len or settings.model.recurrent_state)
        if self._in_windows:
            self._settings = self._settings.with_windows(attn_len or settings.train.seg_len)

    @property
    def tokenizer_name(self) -> str:
        """Name of the vocabulary in the harness's cache of requests."""
        return f"txl-{self._vocab.fingerprint}"

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness writes into its results about the model."""
        opened = self._opened
        settings = self._settings
        info = {
            "model_run": str(opened.run.directory),
            "model_step": opened.checkpoint.state["step"],
            "model_num_parameters": opened.run.parameters,
            "model_precision": opened.precision,
            "model_seg_len": settings.seg_len,
        }
        if self._in_windows:
            info["model_attn_len"] = settings.seg_len
        else:
            info["model_mem_len"] = settings.mem_len
        return info

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and True if it is the greedy one.

        Blanks at the end of the context belong to the continuation, as in other models of the harness. So does a token
        of both, such as a word that the continuation completes.
        """
        texts = []
        for request in requests:
            context, continuation = request.args
            ids = self._vocab.encode(context + continuation)
            context_len = _common_len(ids, self._vocab.encode(context.rstrip()))
            if continuation.strip() and context_len == len(ids):
                raise VocabularyError(
                    f"the continuation {continuation!r} of {context[-20:]!r} has no token of its own; begin it with a "
                    "blank"
                )
            texts.append((ids, len(ids) - context_len))
        return self._log_likelihoods(texts, compare=True)

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Return the log-likelihood of each whole document."""
        texts = [self._vocab.encode(request.args[0]) for request in requests]
        scored = self._log_likelihoods([(ids, len(ids)) for ids in texts], compare=False)
        return [log_likelihood for log_likelihood, _ in scored]

    def _log_likelihoods(
        self, texts: Sequence[tuple[NDArray[np.int64], int]], *, compare: bool
    ) -> list[tuple[float, bool]]:
        """Score the last tokens of texts, as many as given, and compare them with the greedy ones.

        A first symbol that nothing predicts costs log V, as if all symbols were equally likely.
        """
        documents = []
        for ids, count in texts:
            inputs, targets = scored_stream(ids, self._vocab.boundary)
            compared = min(count, len(targets)) if compare else 0
            documents.append(Document(inputs, targets, compared))
        results = []
        for (_, count), document, score in zip(texts, documents, self._score(documents), strict=True):
            predicted = min(count, len(document.targets))
            losses = score.losses_nats[len(score.losses_nats) - predicted :]
            nats = float(losses.sum(dtype=np.float64))
            nats += (count - predicted) * math.log(self._vocab.size)
            results.append((-nats, score.is_likeliest and predicted == count))
        return results

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """Return the continuation of each context, up to the first stop sequence or the largest number of tokens.

        Without a boundary, an empty context is read as a line end, or as the first symbol if the vocabulary has none.
        """
        reader = sampling.reader_of_one_text(self._opened.model, self._settings)
        texts = []
        for context, options in tqdm([request.args for request in requests], desc="generating", disable=None):
            generation = normalize_gen_kwargs(options)
            ids = np.array(self._context_ids(context))
            tokens = sampling.generate(reader, torch.from_numpy(ids), _sampling(generation), seed=SEED)
            first_tokens = itertools.islice(tokens, generation["max_gen_toks"])
            pieces = self._vocab.spell(first_tokens, after=int(ids[-1]))
            stops = [stop for stop in generation["until"] if stop]
            texts.append("".join(until_stop(pieces, stops)))
        return texts

    def _context_ids(self, context: str) -> list[int]:
        """Return the ids to continue; of an empty context without a boundary, those of a line end."""
        ids = list(self._vocab.encode(context))
        if self._vocab.boundary is not None:
            ids.insert(0, self._vocab.boundary)
        return ids or [self._vocab.ids_of.get("\n", 0)]

    def _score(self, documents: Sequence[Document]) -> list[DocumentScore]:
        self._warn_of_unknown(documents)
        if self._in_windows:
            return self._score_in_windows(documents)
        # In parts, for the progress; documents of similar length meet within a part.
        part_size = 32 * self._settings.batch_size
        parts = [documents[first : first + part_size] for first in range(0, len(documents), part_size)]
        scores = []
        for part in tqdm(parts, desc="scoring", disable=None):
            scores += score_documents(self._opened.model, part, self._settings)
        return scores

    def _score_in_windows(self, documents: Sequence[Document]) -> list[DocumentScore]:
        model = self._opened.model
        length = self._settings.seg_len
        longest = max((document.compared for document in documents), default=0)
        if longest > length:
            raise UsageError(f"attn_len={length}: a continuation has {longest} tokens; give at least that")
        settings = self._settings.with_batch_size(windows_at_once(model, length))
        return [score_in_windows(model, document, settings) for document in tqdm(documents, "scoring", disable=None)]

    def _warn_of_unknown(self, documents: Sequence[Document]) -> None:
        unknown = sum(np.count_nonzero(document.targets == self._vocab.unknown) for document in documents)
        if unknown:
            tokens = sum(len(document.targets) for document in documents)
            logging.getLogger(__name__).warning(
                f"{unknown:,} of {tokens:,} tokens are not in the vocabulary and are read as <unk>, which is easier to "
                "predict than the words that it stands for"
            )


def _common_len(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Return the number of ids that two texts have in common at their beginning."""
    shorter = min(len(first), len(second))
    differs = first[:shorter] != second[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def _sampling(generation: Mapping[str, Any]) -> sampling.Sampling:
    """Return the options of sampling."""
    for name in generation:
        if name not in GENERATION:
            raise UnknownNameError("option of generation", name, GENERATION)
    if not generation["do_sample"]:
        return sampling.Sampling(greedy=True)
    return sampling.Sampling(
        temperature=generation.get("temperature") or 1.0,
        top_k=generation.get("top_k") or None,
        top_p=generation.get("top_p"),
    )
