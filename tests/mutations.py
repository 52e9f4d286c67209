"""Damaged messages, the same in every run."""

import random
from collections.abc import Iterator


def mutations(data: bytes, count: int) -> Iterator[bytes]:
    """Overwrite, insert, remove, repeat, flip and cut, up to three times each."""
    chance = random.Random(14)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(made) + 1)
            size = chance.choice([1, 1, 1, 2, 5, 30])
            match chance.randrange(6):
                case 0:
                    made[at : at + 1] = chance.choice([b"\x00", b"\x7f", b"\x80", b"\xff"])
                case 1:
                    made[at:at] = chance.randbytes(size)
                case 2:
                    del made[at : at + size]
                case 3:
                    made[at:at] = made[at : at + size]
                case 4 if at < len(made):
                    made[at] ^= 1 << chance.randrange(8)
                case 5 if chance.random() < 0.3:
                    del made[at:]
        yield bytes(made)
