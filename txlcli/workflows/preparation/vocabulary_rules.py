"""Builds the vocabulary of a store from the symbol counts of its text, and describes the conventions used."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from txlcli import corpora
from txlcli.corpora.corpus import SPLITS, Text, VocabularyRule, cards
from txlcli.data.token_store import SplitInfo
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError
from txlcli.workflows.exchange import vocabularies
from txlcli.workflows.preparation.numbered_text import NumberedText
from txlcli.workflows.preparation.planning import Plan


def rule_of(plan: Plan) -> VocabularyRule:
    """Return the rule of the benchmark, or the one for the tokenizer."""
    corpus = plan.corpus
    if not plan.own_convention:
        return VocabularyRule(**cards()["tokenizers"][plan.tokenizer]["rule"])
    return (corpus.released_rule or corpus.rule) if plan.options.released_convention else corpus.rule


def conventions_of(plan: Plan, text: Text) -> dict[str, str]:
    """Describe the conventions of the store, by subject."""
    corpus, options, own = plan.corpus, plan.options, plan.own_convention
    about_splits = {"split", "files", "documents", *text.splits}
    described = corpus.conventions | (corpus.released_conventions if options.released_convention else {})
    described = {key: value for key, value in described.items() if key in about_splits or (own and key not in SPLITS)}
    described |= text.conventions
    if options.documents:
        described["documents"] = options.documents
    if any(len(pieces) > 1 for pieces in text.splits.values()):
        described["files"] = "joined, with a line end after a file that ends without one"
    if options.split:
        described["split"] = f"{'/'.join(f'{share:g}' for share in options.split)} by --split"
    if plan.vocab is not None:
        kept = {key: value for key, value in described.items() if key in about_splits}
        return kept | {"vocabulary": "given by --vocab" if options.vocab else f"from {plan.vocab_file}"}
    if own:
        built_from = _built_from(corpus.rule, text)
        return described | ({"vocabulary": f"{plan.tokenizer}s of {built_from} by frequency"} if built_from else {})
    at_least, most = options.min_count or 1, options.vocab_size
    limits = f", at least {at_least} times" * (at_least > 1) + (f", the {most:,} most frequent" if most else "")
    model = "BPE" if options.sp_type == "bpe" else "unigram"
    added = cards()["tokenizers"][plan.tokenizer]["conventions"]
    return described | {key: value.format(limits=limits, model=model) for key, value in added.items()}


def vocabulary(plan: Plan, rule: VocabularyRule, symbols: list[str]) -> Vocab:
    """Return a vocabulary of symbols with the marks of a rule, if it has them."""
    boundary, unknown = (symbols.index(mark) if mark in symbols else None for mark in (rule.boundary, rule.unknown))
    return Vocab(
        plan.tokenizer,
        symbols,
        boundary=boundary,
        unknown=unknown,
        lower_case=rule.lower_case,
        dropped=rule.dropped.encode(),
    )


def build(plan: Plan, rule: VocabularyRule, vocabulary_file: Path | None, text: NumberedText) -> Vocab:
    """Build the vocabulary of a text, or read the list of the benchmark."""
    if rule.all_bytes:
        return Vocab.of_bytes(range(256))
    if vocabulary_file is not None and plan.own_convention:
        symbols = list(vocabularies.read(vocabulary_file).symbols)
        if lacking := " and ".join(symbol for symbol in rule.specials if symbol not in symbols):
            raise CorpusInputError(f"{vocabulary_file}: the vocabulary lacks {lacking}; this is another file")
        return vocabulary(plan, rule, symbols)
    counts = text.counts()
    total = sum((counts[split] for split in rule.splits if split in counts), Counter[str]())
    total = total or sum(counts.values(), total)
    frequent = (symbol for symbol, times in total.most_common() if times >= (plan.options.min_count or 1))
    symbols = list(dict.fromkeys((*rule.specials, *frequent)))[: plan.options.vocab_size]
    if rule.unknown is not None and rule.unknown not in symbols and not set().union(*counts.values()) <= {*symbols}:
        symbols.append(rule.unknown)
    return vocabulary(plan, rule, symbols)


def _built_from(rule: VocabularyRule, text: Text) -> str | None:
    """Return the splits that the vocabulary is built from if what the rule needs is missing; None otherwise."""
    missing = text.vocabulary_file is None if rule.file else not set(rule.splits) & set(text.splits)
    return " and ".join(text.splits) if missing and not rule.all_bytes else None


def notes_on(
    plan: Plan, rule: VocabularyRule, text: Text, numbered: NumberedText, vocab: Vocab, counts: Mapping[str, SplitInfo]
) -> Iterator[str]:
    """Yield notes on what differs from the benchmark, and on symbols that do not mean what they look like."""
    built_from = _built_from(rule, text) if plan.vocab is None else None
    if built_from:
        missing = rule.file or f"{' or '.join(rule.splits)} split"
        yield f"no {missing} in this source: the vocabulary is built from {built_from}"
    sizes = {"types": vocab.size} | {split: count.tokens for split, count in counts.items()}
    if vocab.dropped:  # the published counts are of bytes, before any are dropped
        sizes = {split: count.bytes for split, count in counts.items()}
    published = plan.corpus.published.items() if plan.own_convention else ()
    others = [f"{name} {sizes[name]:,} of {full:,}" for name, full in published if sizes.get(name, full) != full]
    if others:
        yield f"not the full benchmark ({', '.join(others)}): do not compare with published numbers"
    if nuls := numbered.total("nuls"):
        yield f"the text has {nuls:,} NUL bytes, which text rarely has; check that it is text"
    if plan.corpus is corpora.OWN_TEXT and (invalid := numbered.total("invalid")):  # enwik8 is cut inside characters
        yield f"the text is not UTF-8 in {invalid:,} places; if it is text in another encoding, name it with `encoding`"
    lines = numbered.total("lines")
    if lines and not vocab.keeps_line_ends and not plan.own_convention:
        yield f"the vocabulary has no symbol for a line end: {lines:,} line ends are dropped, and count as no words"
    if vocab.tokenizer != "word" or plan.own_convention:
        return
    if times := numbered.total("boundaries"):
        yield (
            f"the text itself has {vocab.symbols[vocab.boundary or 0]} {times:,} times; "
            "at the end of a line it is the same symbol as the line end"
        )
    if vocab.unknown is not None and (times := numbered.total("literal_unknown")):
        yield f"the text itself has {vocab.symbols[vocab.unknown]} {times:,} times, which are not counted as unknown"
