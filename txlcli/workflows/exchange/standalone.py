"""Scores or continues a text with the model that `txl export` wrote into this folder. Needs PyTorch alone.

python load.py score FILE        # mean loss of the tokens of a file, in nats
python load.py continue TEXT     # the text and 200 sampled tokens
"""

import json
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
VOCAB = json.loads((HERE / "vocab.json").read_text(encoding="utf-8"))
State = tuple[Tensor, list[Tensor]]
IS_BYTE, IS_WORD = VOCAB["kind"] == "byte", VOCAB["kind"] == "word"
SYMBOLS = [chr(byte) for byte in VOCAB["bytes"]] if IS_BYTE else VOCAB.get("symbols", [])
END = f" {SYMBOLS[VOCAB['boundary']]} " if IS_WORD and VOCAB["boundary"] is not None else " "


@torch.no_grad()
def read(tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """Read tokens (B, T) after a state, or at the beginning of a text.

    Returns the log-probabilities (B, T, V) of the tokens after each, and the new state.
    """
    remembered, memory = state or (REMEMBERED, [part[:1].expand(len(tokens), -1, -1) for part in MEMORY])
    results = []
    for part in tokens.split(SEGMENT.shape[1], dim=1):
        count = part.shape[1]
        padded = torch.nn.functional.pad(part, (0, SEGMENT.shape[1] - count))
        log_probs, memory = MODEL(padded, torch.tensor(count), remembered, memory)
        remembered = (remembered + count).clamp(max=MEMORY[0].shape[1])
        results.append(log_probs[:, :count])
    return torch.cat(results, dim=1), (remembered, memory)


def encode(text: str) -> list[int]:
    """Return the ids of a text; those of words begin with a line end."""
    ids = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    if IS_BYTE:
        return [ids[symbol] for symbol in map(chr, text.encode()) if symbol in ids]
    text = text.lower() if VOCAB["lower_case"] else text
    symbols = (END + text.replace("\n", END)).split() if IS_WORD else text
    return [ids.get(symbol, VOCAB["unknown"]) for symbol in symbols]


def decode(ids: list[int]) -> str:
    """Return the text of ids."""
    text = (" " * IS_WORD).join(SYMBOLS[number] for number in ids)
    return text.encode("latin1").decode(errors="replace") if IS_BYTE else text


if __name__ == "__main__":
    command, argument = sys.argv[1:]
    if not SYMBOLS:
        sys.exit("the tokens of this model are pieces or ids: give `read` the ids of another program")
    ids = encode(Path(argument).read_text(encoding="utf-8") if command == "score" else argument)
    log_probs, state = read(torch.tensor([ids]))
    if command == "score":
        print(-log_probs[0, :-1].gather(1, torch.tensor(ids[1:])[:, None]).mean().item())
        sys.exit()
    for _ in range(200):
        ids.append(int(torch.multinomial(log_probs[0, -1].exp(), 1)))
        log_probs, state = read(torch.tensor([ids[-1:]]), state)
    print(decode(ids))
