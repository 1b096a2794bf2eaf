"""Builds the vocabulary of a store from the counted symbols of its text."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corpora.corpus import SPLITS, Text, VocabularyRule
from txlcli.data.token_store import SplitCounts
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, VocabularyError
from txlcli.workflows.preparation.inventory import Inventory
from txlcli.workflows.preparation.planning import Plan

EOS, UNK = "<eos>", "<unk>"


def rule_of(plan: Plan) -> VocabularyRule:
    """The benchmark's own rule, or the rule for own text and other tokenizers; a given vocabulary is a rule itself."""
    corpus, vocab = plan.corpus, plan.vocab
    if vocab is not None:
        boundary = None if vocab.boundary is None or vocab.tokenizer != "word" else vocab.symbols[vocab.boundary]
        return VocabularyRule(splits=(), boundary=boundary, lower_case=vocab.lower_case, dropped=vocab.dropped)
    if plan.own:
        return (corpus.released_rule or corpus.rule) if plan.read.released else corpus.rule
    if plan.kind == "byte":
        return VocabularyRule(all_bytes=True)
    if plan.kind == "char":
        return VocabularyRule(splits=("train",), specials=(UNK,), unknown=UNK)
    return VocabularyRule(splits=("train",), specials=(EOS, UNK), boundary=EOS, unknown=UNK)


def conventions_of(plan: Plan, text: Text) -> dict[str, str]:
    """What was done, in words, for the store."""
    corpus = plan.corpus
    about_splits = {"split", *text.splits}
    said = {key: value for key, value in corpus.conventions.items() if key in about_splits}
    if plan.own:
        said |= {key: value for key, value in corpus.conventions.items() if key not in SPLITS}
    if plan.read.released:
        said |= corpus.released_conventions
    said |= text.conventions
    if plan.read.shares:
        said["split"] = f"{'/'.join(f'{share:g}' for share in plan.read.shares)} by --split"
    if plan.vocab is not None:
        return {key: value for key, value in said.items() if key in about_splits} | {"vocabulary": "given by --vocab"}
    if plan.own:
        built_from = _built_from(plan.corpus.rule, text)
        return said | ({"vocabulary": f"{plan.kind}s of {built_from} by frequency"} if built_from else {})
    at_least = f", at least {plan.min_count} times" if plan.min_count > 1 else ""
    most = f", the {plan.vocab_size:,} most frequent" if plan.vocab_size else ""
    said["vocabulary"] = {
        "byte": "all 256 bytes",
        "char": f"characters of train by frequency{at_least}, others {UNK}",
        "word": f"words of train by frequency{at_least}{most}, others {UNK}",
        "sentencepiece": f"{'BPE' if plan.bpe else 'unigram'}, trained on train, lossless",
    }[plan.kind]
    if plan.kind in ("word", "sentencepiece"):
        said["line end"] = EOS
    return said


def build(plan: Plan, rule: VocabularyRule, inventory: Inventory, vocabulary_file: Path | None) -> Vocab:
    """The vocabulary of bytes, characters or words; `vocabulary_file` lists it where there is one.

    Raises:
        CorpusInputError: that file lacks a symbol that the rule needs.
    """
    if plan.kind == "byte":
        seen = [ord(symbol) for symbol in inventory.by_frequency(_counted(rule, inventory))]
        values = range(256) if rule.all_bytes else (value for value in seen if value not in rule.dropped)
        return Vocab.of_bytes(values, dropped=rule.dropped)
    if vocabulary_file is not None and plan.own:
        symbols = read_list(vocabulary_file, rule.specials)
    else:
        words = inventory.by_frequency(_counted(rule, inventory), plan.min_count)
        symbols = list(dict.fromkeys((*rule.specials, *words)))[: plan.vocab_size]
        symbols += _stand_in(rule, symbols, inventory.numbers)
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    return Vocab(
        plan.kind,
        symbols,
        boundary=None if rule.boundary is None else ids[rule.boundary],
        unknown=None if rule.unknown is None else ids.get(rule.unknown),
        lower_case=rule.lower_case,
    )


def _counted(rule: VocabularyRule, inventory: Inventory) -> tuple[str, ...]:
    """The splits that the rule counts, or all there are where it finds none of them."""
    held = tuple(split for split in SPLITS if inventory.counts(split, 0).size)
    return tuple(split for split in rule.splits if split in held) or held


def _stand_in(rule: VocabularyRule, symbols: list[str], seen: Iterable[str]) -> list[str]:
    """The unknown symbol, where something is unknown and the text itself has none."""
    if rule.unknown is None or rule.unknown in symbols:
        return []
    known = set(symbols)
    return [] if all(symbol in known for symbol in seen) else [rule.unknown]


def read_list(path: Path, needed: tuple[str, ...]) -> list[str]:
    """The symbols of a vocabulary file: the first field of each line, each once."""
    try:
        with path.open(encoding="utf-8") as file:
            symbols = list(dict.fromkeys(fields[0] for line in file if (fields := line.split())))
    except UnicodeDecodeError as error:
        raise CorpusInputError(f"{path}: byte {error.start:,} is not valid UTF-8; fetch the file again") from error
    lacking = [symbol for symbol in needed if symbol not in symbols]
    if lacking:
        raise CorpusInputError(f"{path}: the vocabulary lacks {' and '.join(lacking)}; this is another file")
    return symbols


def check_given(inventory: Inventory, vocab: Vocab) -> None:
    """Refuse a given vocabulary that lacks a symbol of the text and has no unknown one to stand for it.

    Raises:
        VocabularyError: naming the first such symbol.
    """
    if vocab.tokenizer == "sentencepiece" or vocab.unknown is not None:
        return
    dropped = {chr(value) for value in vocab.dropped}
    lacking = [symbol for symbol in inventory.numbers if symbol not in vocab.ids_of and symbol not in dropped]
    if lacking:
        named = f"byte 0x{ord(lacking[0]):02x}" if vocab.tokenizer == "byte" else f'"{lacking[0]}"'
        more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
        raise VocabularyError(
            f"the vocabulary of --vocab lacks {named}{more} of this text, and has no symbol for unknown ones; "
            "it belongs to another text"
        )


def _built_from(rule: VocabularyRule, text: Text) -> str | None:
    """The splits that a vocabulary is built from for want of what the rule asks for; None where it is not."""
    lacking = text.vocabulary_file is None if rule.file else not set(rule.splits) & set(text.splits)
    return " and ".join(text.splits) if lacking and not rule.all_bytes else None


def final_ids(inventory: Inventory, vocab: Vocab) -> NDArray[np.int64]:
    """For each symbol number of the inventory its id; -1 for what the vocabulary drops."""
    if vocab.tokenizer == "sentencepiece":
        return np.arange(vocab.size)
    other = -1 if vocab.unknown is None else vocab.unknown
    return np.array([vocab.ids_of.get(symbol, other) for symbol in inventory.numbers], dtype=np.int64)


def strangers(inventory: Inventory, vocab: Vocab) -> NDArray[np.bool_]:
    """For each symbol number whether the unknown symbol stands for it; the text's own <unk> is a word like others."""
    if vocab.tokenizer == "sentencepiece":
        return np.zeros(vocab.size, dtype=bool)
    has_unknown = vocab.unknown is not None
    return np.array([has_unknown and symbol not in vocab.ids_of for symbol in inventory.numbers], dtype=bool)


def remarks(
    plan: Plan, rule: VocabularyRule, text: Text, types: int, counts: Mapping[str, SplitCounts]
) -> Iterator[str]:
    """What the user must know: a vocabulary from elsewhere than the rule says, and less text than the benchmark has."""
    built_from = _built_from(rule, text) if plan.vocab is None else None
    if built_from:
        lacking = rule.file or f"{' or '.join(rule.splits)} split"
        yield f"no {lacking} in this source: the vocabulary is built from {built_from}"
    published = plan.corpus.published
    if not (plan.own and published):
        return
    if rule.dropped:  # the published counts are of bytes, before anything is dropped
        sizes = {split: one.bytes for split, one in counts.items()}
    else:
        sizes = {split: one.tokens for split, one in counts.items()} | {"types": types}
    less = [
        f"{what} {sizes[what]:,} of {published[what]:,}"
        for what in published
        if what in sizes and sizes[what] != published[what]
    ]
    if less:
        yield f"not the full benchmark ({', '.join(less)}): do not compare with published numbers"
