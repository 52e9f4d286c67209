"""The heads of an encoder as commands spell them. Needs no torch.

Shape letters: H heads, G key and value heads, K head width.
"""

import dataclasses
import re
from dataclasses import dataclass

from polyhead_model.config import EncoderConfig

_NUMBER = r"[1-9]\d{0,8}"
_HEADS = re.compile(rf"({_NUMBER})(?:/({_NUMBER}))?")
_WIDTHS = re.compile(rf"{_NUMBER}(?:\+{_NUMBER})+")


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """The heads of each layer: `8`, `8/2` with fewer of keys and values, or `64+32+32` by their widths."""

    heads: int
    """H."""
    kv_heads: int | None = None
    """G; None means H."""
    widths: tuple[int, ...] | None = None
    """The width of each head; None = all are K wide."""

    def __str__(self) -> str:
        """Spell it as `parse_head_choices` reads it."""
        if self.widths is not None:
            return "+".join(map(str, self.widths))
        return str(self.heads) if self.kv_heads is None else f"{self.heads}/{self.kv_heads}"

    @property
    def suffix(self) -> str:
        """What the name of a family with these heads ends with: `h8`, `h8-g2` or `w64-32-32`."""
        if self.widths is not None:
            return "w" + "-".join(map(str, self.widths))
        return f"h{self.heads}" if self.kv_heads is None else f"h{self.heads}-g{self.kv_heads}"

    def of(self, config: EncoderConfig) -> EncoderConfig:
        """Return the configuration with these heads; K follows as D / H, unless it is given there or here.

        Raises:
            ValueError: The encoder cannot have them.
        """
        head_width, head_widths = config.head_width, None
        if self.widths is not None:
            head_width, head_widths = max(self.widths), (self.widths,) * config.layers
        try:
            return dataclasses.replace(
                config,
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_width=head_width,
                head_widths=head_widths,
            )
        except ValueError as error:
            raise ValueError(f"--heads cannot be {self} here: {error}") from error


def parse_head_choices(text: str) -> tuple[HeadChoice, ...]:
    """Parse `8,8/2,64+32+32`.

    Raises:
        ValueError: It is anything else.
    """
    choices = []
    for each in text.split(","):
        spelled = each.strip()
        if _WIDTHS.fullmatch(spelled):
            widths = tuple(map(int, spelled.split("+")))
            choices.append(HeadChoice(heads=len(widths), widths=widths))
        elif match := _HEADS.fullmatch(spelled):
            kv_heads = None if match[2] is None else int(match[2])
            choices.append(HeadChoice(heads=int(match[1]), kv_heads=kv_heads))
        else:
            raise ValueError(
                "must be numbers of heads such as 1,2,4,8, of heads and of key and value heads such as "
                f"8/4,8/1, or widths of heads such as 64+32+32, was {text!r}"
            )
    return tuple(choices)
