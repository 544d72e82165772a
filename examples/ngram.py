"""How well letters can be guessed by counting: n-grams on US census surnames. The bar for ``train_names.py``.

    python examples/ngram.py                        # orders 0 to 5

An n-gram of order k predicts a character from the k before it. What was counted is mixed with the prediction of the
next lower order (Witten and Bell, 1991): for a context that was seen n times and followed by t different characters

    P(c | context) = (n(context c) + t · P(c | context without its first character)) / (n + t)

and below order 0 all 27 characters (the letters and the end of the name) are equally likely.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import names

END = "."  # after the last letter of a name; before its first one there are as many STARTs as a context needs
START = "^"
CHARACTERS = END + "abcdefghijklmnopqrstuvwxyz"


def load() -> tuple[list[str], list[str]]:
    """Training and held-out surnames: each once, in lower case, shuffled with seed 0; the last 10 % are held out."""
    with open(names.FILES["last"], encoding="ascii") as lines:
        surnames = sorted({line.split()[0].lower() for line in lines})
    random.Random(0).shuffle(surnames)
    cut = len(surnames) * 9 // 10
    return surnames[:cut], surnames[cut:]


class NGram:
    """The character model of one order, counted on ``surnames``."""

    def __init__(self, surnames: list[str], order: int) -> None:
        self.order = order
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        for name in surnames:
            for context, character in self.pairs(name):
                for start in range(order + 1):
                    self.counts[context[start:]][character] += 1

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Every character of a name, its end included, with the ``order`` characters before it."""
        text = START * self.order + name + END
        return [(text[i - self.order : i], text[i]) for i in range(self.order, len(text))]

    def probability(self, character: str, context: str) -> float:
        """P(character | context)."""
        p = 1 / len(CHARACTERS)
        for start in range(self.order, -1, -1):  # from no context at all to the whole of it
            seen = self.counts.get(context[start:])
            if seen is None:
                break  # nor was any longer one
            n, different = seen.total(), len(seen)
            p = (seen[character] + different * p) / (n + different)
        return p

    def nats_per_char(self, surnames: list[str]) -> float:
        """Mean of -log P over all characters of ``surnames``, ends included."""
        pairs = [pair for name in surnames for pair in self.pairs(name)]
        return -math.fsum(math.log(self.probability(character, context)) for context, character in pairs) / len(pairs)


def main() -> None:
    """Print the held-out loss of each order."""
    train, held_out = load()
    for order in range(6):
        print(f"order {order}: {NGram(train, order).nats_per_char(held_out):.3f} nats per character")


if __name__ == "__main__":
    main()
