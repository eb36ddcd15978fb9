"""Plan text with random damage."""

from __future__ import annotations

import random

ALPHABET = "()[]{}:,-+*/%#'\"\n \t0123456789abcrank&!|>?@`\\\u00e9\u2028"


def damaged(text: str, dice: random.Random) -> str:
    """The text with one to three places of it removed or overwritten."""
    found = list(text)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(found) or 1)
        if dice.random() < 0.4:
            del found[at : at + dice.randint(1, 4)]
        else:
            found[at:at] = dice.choice(ALPHABET)
    return "".join(found)
