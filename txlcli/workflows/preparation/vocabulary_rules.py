"""Builds the vocabulary of a store from the symbol counts of its text, and describes the conventions used."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from txlcli import corpora
from txlcli.corpora.corpus import SPLITS, Text, VocabularyRule, cards
from txlcli.corpora.directory import remarks_on_bytes
from txlcli.corpora.documents import UNITS
from txlcli.data.token_store import SplitCounts
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError
from txlcli.workflows.exchange import vocabularies
from txlcli.workflows.preparation.numbered_text import NumberedText
from txlcli.workflows.preparation.planning import PreparationPlan


def rule_of(plan: PreparationPlan) -> VocabularyRule:
    """Return the rule of the benchmark, or the one for the tokenizer."""
    corpus = plan.corpus
    if not plan.own_convention:
        return VocabularyRule(**cards()["tokenizers"][plan.tokenizer]["rule"])
    if plan.options.released_convention and corpus.released_rule:
        return corpus.released_rule
    return corpus.rule


def conventions_of(plan: PreparationPlan, text: Text) -> dict[str, str]:
    """Describe the conventions of the store, by subject."""
    options = plan.options
    released = plan.corpus.released_conventions if options.released_convention else {}
    described = {}
    about_symbols = {}
    for subject, convention in (plan.corpus.conventions | released).items():
        if subject in ("split", *text.splits):
            described[subject] = convention
        elif subject not in SPLITS:
            about_symbols[subject] = convention
    described |= text.conventions
    if options.documents:
        is_unit = options.documents in UNITS
        described["documents"] = options.documents if is_unit else f"up to each {options.documents}"
    if any(len(pieces) > 1 for pieces in text.splits.values()):
        described["files"] = "joined, with a line end after a file that ends without one"
    if plan.vocab is not None:
        described["vocabulary"] = "given by --vocab" if options.vocab else f"from {plan.vocab_file}"
        return described
    if not plan.own_convention:
        return described | _tokenizer_conventions(plan)
    built_from = _built_from(plan.corpus.rule, text)
    if built_from:
        about_symbols["vocabulary"] = f"{plan.tokenizer}s of {built_from} by frequency"
    return described | about_symbols


def _tokenizer_conventions(plan: PreparationPlan) -> dict[str, str]:
    """Describe the conventions of a tokenizer that is not the corpus's own, with the limits of its vocabulary."""
    options = plan.options
    limits = ""
    if options.min_count and options.min_count > 1:
        limits += f", at least {options.min_count} times"
    if options.vocab_size:
        limits += f", at most {options.vocab_size:,} symbols with <eos> and <unk>"
    model = "BPE" if options.sp_type == "bpe" else "unigram"
    conventions = cards()["tokenizers"][plan.tokenizer]["conventions"]
    return {subject: text.format(limits=limits, model=model) for subject, text in conventions.items()}


def vocabulary(plan: PreparationPlan, rule: VocabularyRule, symbols: list[str]) -> Vocab:
    """Return a vocabulary of symbols with the marks of a rule, if it has them."""
    return Vocab(
        plan.tokenizer,
        symbols,
        boundary=vocabularies.index_of(symbols, rule.boundary),
        unknown=vocabularies.index_of(symbols, rule.unknown),
        lower_case=rule.lower_case,
        dropped=rule.dropped.encode(),
    )


def build(plan: PreparationPlan, rule: VocabularyRule, vocabulary_file: Path | None, text: NumberedText) -> Vocab:
    """Build the vocabulary of a text, or read the list of the benchmark."""
    if rule.all_bytes:
        return Vocab.of_bytes(range(256))
    if vocabulary_file is not None and plan.own_convention:
        symbols = list(vocabularies.read(vocabulary_file).symbols)
        lacking = [symbol for symbol in rule.specials if symbol not in symbols]
        if lacking:
            raise CorpusInputError(
                f"{vocabulary_file}: the vocabulary lacks {' and '.join(lacking)}; this is another file"
            )
        return vocabulary(plan, rule, symbols)
    counts = text.symbol_counts()
    counted = [counts[split] for split in rule.splits if split in counts]
    total = sum(counted or counts.values(), Counter[str]())
    min_count = plan.options.min_count or 1
    frequent = [symbol for symbol, times in total.most_common() if times >= min_count]
    symbols = list(dict.fromkeys((*rule.specials, *frequent)))[: plan.options.vocab_size]
    has_all = set().union(*counts.values()).issubset(symbols)
    if rule.unknown is not None and rule.unknown not in symbols and not has_all:
        symbols.append(rule.unknown)
    return vocabulary(plan, rule, symbols)


def _built_from(rule: VocabularyRule, text: Text) -> str | None:
    """Return the splits that the vocabulary is built from if what the rule needs is missing; None otherwise."""
    if rule.file:
        has_needed = text.vocabulary_file is not None
    else:
        has_needed = not set(rule.splits).isdisjoint(text.splits)
    if rule.all_bytes or has_needed:
        return None
    return " and ".join(text.splits)


def notes_on(
    plan: PreparationPlan,
    rule: VocabularyRule,
    text: Text,
    numbered: NumberedText,
    vocab: Vocab,
    counts: Mapping[str, SplitCounts],
) -> Iterator[str]:
    """Yield notes on what differs from the benchmark, and on symbols that do not mean what they look like."""
    built_from = _built_from(rule, text)
    if plan.vocab is None and built_from:
        missing = rule.file or f"{' or '.join(rule.splits)} split"
        yield f"no {missing} in this source: the vocabulary is built from {built_from}"
    others = _other_sizes(plan, vocab, counts)
    if plan.own_convention and others:
        yield f"not the full benchmark ({', '.join(others)}): do not compare with published numbers"
    is_own = plan.corpus is corpora.OWN_TEXT  # enwik8 is cut inside characters
    yield from remarks_on_bytes(numbered.total("nuls"), numbered.total("invalid") if is_own else 0)
    lines = numbered.total("lines")
    if lines and not vocab.keeps_line_ends and not plan.own_convention:
        yield f"the vocabulary has no symbol for a line end: {lines:,} line ends are dropped, and count as no words"
    if vocab.tokenizer != "word" or plan.own_convention:
        return
    boundaries = numbered.total("boundaries")
    if boundaries:
        yield (
            f"the text itself has {vocab.symbols[vocab.boundary or 0]} {boundaries:,} times; "
            "at the end of a line it is the same symbol as the line end"
        )
    unknown = numbered.total("literal_unknown")
    if unknown and vocab.unknown is not None:
        yield f"the text itself has {vocab.symbols[vocab.unknown]} {unknown:,} times, which are not counted as unknown"


def _other_sizes(plan: PreparationPlan, vocab: Vocab, counts: Mapping[str, SplitCounts]) -> list[str]:
    """Return the sizes that are not the published ones, in words."""
    if vocab.dropped:  # the published counts are of bytes, before any are dropped
        sizes = {split: count.bytes for split, count in counts.items()}
    else:
        sizes = {"types": vocab.size} | {split: count.tokens for split, count in counts.items()}
    others = []
    for name, full in plan.corpus.published.items():
        if name in sizes and sizes[name] != full:
            others.append(f"{name} {sizes[name]:,} of {full:,}")
    return others
