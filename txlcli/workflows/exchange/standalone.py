"""Scores or continues a text with the model that `txl export` wrote into this folder. Needs PyTorch alone.

python load.py score FILE        # mean loss of the tokens of a file, in nats
python load.py continue TEXT     # the text and 200 sampled tokens
"""

import json
import re
import sys
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent
PROGRAM = torch.export.load(HERE / "model.pt2")
MODEL = PROGRAM.module()
# Inputs at the beginning of a text: L padded tokens (B, L), their number without padding, how many positions at the
# end of the memory hold something, and the memory, (B, M, d) for each layer.
SEGMENT, _, REMEMBERED, MEMORY = PROGRAM.example_inputs[0]
SEG_LEN = SEGMENT.shape[1]
MEM_LEN = MEMORY[0].shape[1]
VOCAB = json.loads((HERE / "vocab.json").read_text(encoding="utf-8"))
State = tuple[Tensor, list[Tensor]]
KIND = VOCAB["kind"]
SYMBOLS = VOCAB.get("symbols", [])
BYTE_ORDER_MARK = "\ufeff"
END = " "  # a line end between words
if KIND == "byte":
    SYMBOLS = [chr(byte) for byte in VOCAB["bytes"]]
if KIND == "word" and VOCAB["boundary"] is not None:
    END = f" {SYMBOLS[VOCAB['boundary']]} "


@torch.no_grad()
def read(tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """Read tokens (B, T) after a state, or at the beginning of a text.

    Returns the log-probabilities (B, T, V) of the tokens after each, and the new state.
    """
    if state is None:
        state = REMEMBERED, [part[:1].expand(len(tokens), -1, -1) for part in MEMORY]
    remembered, memory = state
    results = []
    for part in tokens.split(SEG_LEN, dim=1):
        count = part.shape[1]
        padded = torch.nn.functional.pad(part, (0, SEG_LEN - count))
        log_probs, memory = MODEL(padded, torch.tensor(count), remembered, memory)
        remembered = (remembered + count).clamp(max=MEM_LEN)
        results.append(log_probs[:, :count])
    return torch.cat(results, dim=1), (remembered, memory)


def encode(text: str) -> list[int]:
    """Return the ids of a text; those of words begin with a line end.

    Raises a ValueError for a symbol that the vocabulary lacks.
    """
    if KIND == "byte":
        kept = text.encode(errors="surrogateescape").translate(None, bytes(VOCAB["dropped"]))
        symbols = [chr(byte) for byte in kept]
    elif KIND == "char":
        symbols = list(text)
    else:
        if VOCAB["lower_case"]:
            text = text.lower()
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        if END.strip():  # this symbol, written in the text before a line end, is that same line end
            lines = re.sub(rf"(?<!\S){re.escape(END.strip())}[^\S\n]*\n", "\n", lines)
        symbols = (END + lines.replace("\n", END)).split()
    ids = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    missing = [symbol for symbol in symbols if symbol not in ids]
    if missing and VOCAB["unknown"] is None:
        raise ValueError(f"the vocabulary lacks {missing[0]!r}; leave it out of the text")
    return [ids.get(symbol, VOCAB["unknown"]) for symbol in symbols]


def decode(ids: list[int]) -> str:
    """Return the text of ids."""
    symbols = [SYMBOLS[number] for number in ids]
    if KIND == "word":
        return " ".join(symbols)
    text = "".join(symbols)
    if KIND == "byte":
        return text.encode("latin1").decode(errors="replace")
    return text


def score(text: str) -> float:
    """Return the mean loss of the tokens of a text after the first, in nats.

    With words, this includes a line end after the text.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    if KIND == "word" and text.strip() and not text.endswith(("\n", "\r")):
        text += "\n"
    ids = torch.tensor(encode(text))
    if len(ids) < 2:
        raise ValueError("the text has no second token, and the first one is not scored; give a longer text")
    state = None
    total = 0.0
    for part, targets in zip(ids[:-1].split(SEG_LEN), ids[1:].split(SEG_LEN), strict=True):  # (L, V) each, not (T, V)
        log_probs, state = read(part[None], state)
        total -= float(log_probs[0].gather(1, targets[:, None]).sum())
    return total / (len(ids) - 1)


def continued(text: str, count: int = 200) -> str:
    """Return a text and `count` sampled tokens.

    The present segment is read again for each token, which costs the same; without a memory, the last L tokens are.
    """
    ids = encode(text)
    if not ids:
        raise ValueError("the text has no token to continue; give a longer text")
    state = None
    begin = 0
    for _ in range(count):
        complete = (len(ids) - 1) // SEG_LEN * SEG_LEN
        if MEM_LEN == 0:
            begin = max(0, len(ids) - SEG_LEN)
        elif complete > begin:
            _, state = read(torch.tensor([ids[begin:complete]]), state)
            begin = complete
        log_probs, _ = read(torch.tensor([ids[begin:]]), state)
        ids.append(int(torch.multinomial(log_probs[0, -1].exp(), 1)))
    return decode(ids)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("score", "continue"):
        sys.exit(__doc__.strip())
    command, argument = sys.argv[1:]
    if not SYMBOLS:
        sys.exit("the tokens of this model are pieces or ids: give `read` the ids of another program")
    try:
        if command == "score":
            text = Path(argument).read_bytes().decode(errors="surrogateescape" if KIND == "byte" else "strict")
            print(score(text))
        else:
            print(continued(argument))
    except OSError as error:
        sys.exit(f"{argument}: {error.strerror}")
    except ValueError as error:
        sys.exit(str(error))
