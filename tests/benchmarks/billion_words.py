"""What `txl prepare lm1b` takes at the benchmark's true shape: 99 shards, 30 M sentences, 769 M tokens.

python -m tests.benchmarks.billion_words [--shards 25,99] [--workers 1,2] [--directory DIR] [--json]

The text is made here: words are drawn by Zipf's law from a vocabulary of 793,470, sentences have 5 to 43 of them. It
takes 4.2 GB at 99 shards, and the store 3.2 GB. Each preparation is a process of its own, from the files to the store;
the stores of one number of shards must be the same file for any number of workers.
"""

import hashlib
import itertools
import json as json_format
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tests.benchmarks import corpus
from txlcli import console
from txlcli.corpora.lm1b import HELDOUT, VOCABULARY_FILE
from txlcli.data.token_store import TokenStore
from txlcli.errors import UsageError

TYPES = 793_468  # beside <S> and <UNK>
WORDS_PER_SHARD, WORDS_OF_HELDOUT = 7_458_000, 153_500
SHORTEST, LONGEST = 5, 43
MAX_SHARDS = 99


def blocks_of_sentences(types):
    """Blocks of text, each with its line starts; lines are sentences."""
    words = np.array([corpus.word(rank) for rank in range(types)])
    random = np.random.default_rng(7)
    blocks = []
    for _ in range(corpus.BLOCKS):
        ranks = np.exp(random.random(corpus.WORDS_PER_BLOCK) * np.log(types + 1)).astype(np.int64) - 1
        drawn = words[ranks]
        ends = np.cumsum(random.integers(SHORTEST, LONGEST + 1, corpus.WORDS_PER_BLOCK // SHORTEST))
        bounds = [0, *ends[ends < len(drawn)], len(drawn)]
        lines = [" ".join(drawn[start:end]) + "\n" for start, end in itertools.pairwise(bounds)]
        blocks.append("".join(lines).encode())
    return words, blocks


def write_shards(directory, shards, types=TYPES, words_per_shard=WORDS_PER_SHARD):
    """Write the vocabulary, two heldout shards and the shards of the training split, all of them different."""
    directory.mkdir(parents=True)
    words, blocks = blocks_of_sentences(types)
    (directory / VOCABULARY_FILE).write_text("\n".join(["<S>", "<UNK>", *words]) + "\n")
    for number, name in enumerate(HELDOUT.values()):
        (directory / name).write_bytes(
            _rotated(blocks[number], number, words_per_shard * WORDS_OF_HELDOUT // WORDS_PER_SHARD)
        )
    for shard in range(1, shards + 1):
        with (directory / f"news.en-{shard:05}-of-00100").open("wb") as file:
            left = words_per_shard
            for number in range(shard, shard + words_per_shard // corpus.WORDS_PER_BLOCK + 1):
                file.write(_rotated(blocks[number % corpus.BLOCKS], 97 * shard + number, left))
                left -= corpus.WORDS_PER_BLOCK


def _rotated(block, number, words):
    """About so many words of a block, from another line on for every number."""
    size = min(len(block), len(block) * words // corpus.WORDS_PER_BLOCK)
    start = block.index(b"\n", number * 10_007 % (len(block) // 2)) + 1
    text = (block[start:] + block[:start])[:size]
    return text[: text.rindex(b"\n") + 1] if b"\n" in text else b""


def prepare_shards(directory, data, workers):
    """Prepare in a process of its own; return what it took and the digest of the store."""
    code = (
        "from pathlib import Path\nfrom tests.benchmarks.corpus import prepare_here\n"
        f"prepare_here('lm1b', Path({str(data)!r}), {workers}, source=Path({str(directory)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    store = TokenStore.open(data / "lm1b.h5")
    with store.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    starts = store.sentence_starts("train")
    facts = {"sentences": len(starts), "type_of_starts": starts.dtype.name, "store_bytes": store.path.stat().st_size}
    return json_format.loads(done.stdout) | facts | {"workers": workers, "sha256": digest}


def measure(directory, shards, workers):
    """Prepare shards once with each number of workers."""
    write_shards(directory / f"shards-{shards}", shards)
    results = []
    for count in workers:
        data = directory / f"data-{shards}-{count}"
        results.append({"shards": shards} | prepare_shards(directory / f"shards-{shards}", data, count))
        (data / "lm1b.h5").unlink()
    if len({result["sha256"] for result in results}) != 1:
        raise AssertionError(f"{shards} shards: the stores of {workers} workers differ")
    return results


def show(results):
    lines = [
        [
            f"{result['shards']}",
            f"{result['workers']}",
            f"{result['tokens']:,}",
            f"{result['sentences']:,} ({result['type_of_starts']})",
            f"{result['seconds']:,.0f} s",
            f"{result['tokens_per_s'] / 1e6:.2f} M",
            f"{result['peak_bytes'] / 2**20:,.0f} MiB",
            f"{result['store_bytes'] / 1e9:.2f} GB",
        ]
        for result in results
    ]
    headings = ("shards", "workers", "tokens", "sentences", "time", "tokens/s", "memory", "store")
    caption = "memory: at most, over all workers. Stores of the same shards are the same file."
    console.show_table("txl prepare lm1b", headings, lines, [caption])


def main(
    shards: Annotated[str, typer.Option(help="Numbers of shards, at most 99 each.")] = "25,99",
    workers: Annotated[str, typer.Option(help="Numbers of processes that read text.")] = "1,2",
    directory: Annotated[
        Path | None, typer.Option(help="Folder for texts and stores [default: a temporary one].")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure `txl prepare lm1b` on shards that are made on the spot."""
    counts = [int(count) for count in shards.split(",")]
    if not all(1 <= count <= MAX_SHARDS for count in counts):
        raise UsageError(f"--shards {shards}: give numbers from 1 to {MAX_SHARDS}")
    results = []
    for count in counts:
        with tempfile.TemporaryDirectory(dir=directory) as work:
            results += measure(Path(work), count, [int(number) for number in workers.split(",")])
    if json:
        console.show_json({"results": results})
    else:
        show(results)


if __name__ == "__main__":
    typer.run(main)
