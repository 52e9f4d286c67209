"""Guess letters of a real text from those around them, with one layer of attention.

The text is the manual that every Python carries, what `help("assert")` prints. It differs a little from one
version of Python to the next, and so do results.

Shape letters: B batch, T letters of a window, D d_model, H heads, K head width, F feed-forward width.
"""

import math
import pydoc_data.topics
import re
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyhead_model.plain import MultiHeadAttention, scaled_dot_product_attention
from training import fit

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
WINDOW = 12

Guess = Literal["hidden", "next"]


class Text(NamedTuple):
    """The manual as numbers of letters, each [letters]."""

    learn: Tensor
    """Nine tenths of its topics."""
    held_out: Tensor
    """The last tenth. It repeats much of the rest: it compares models, and is no measure of English."""


def read_manual() -> Text:
    """Read the manual, reduced to small letters and spaces."""
    topics = [re.sub(r"[^a-z]+", " ", text.lower()) for _, text in sorted(pydoc_data.topics.topics.items())]
    cut = len(topics) * 9 // 10
    parts = " ".join(topics[:cut]), " ".join(topics[cut:])
    return Text(*(torch.tensor([ALPHABET.index(letter) for letter in part]) for part in parts))


def draw_windows(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw windows of a text, [B, T]."""
    starts = torch.randint(len(text) - WINDOW, (count, 1), generator=generator)
    return text[starts + torch.arange(WINDOW)]


class LetterModel(nn.Module):
    """One layer of attention with a residual, then a feed-forward network.

    To guess a `hidden` letter, a place asks with nothing but its position, and may look at all others. To
    guess the `next` letter, it asks with its own letter, too, and may look at itself and back.
    """

    def __init__(self, guess: Guess, d_model: int, heads: int, head_width: int | None, hidden: int) -> None:
        super().__init__()
        self.guess = guess
        self.letter, self.place = nn.Embedding(len(ALPHABET), d_model), nn.Embedding(WINDOW, d_model)
        self.attention = MultiHeadAttention(d_model, heads, head_width)
        self.readout = nn.Sequential(nn.Linear(d_model, hidden), nn.ReLU(), nn.Linear(hidden, len(ALPHABET)))

    def forward(self, letters: Tensor) -> tuple[Tensor, Tensor]:
        """Guess: letters [B, T] → logits [B, T, letters of the alphabet], attention weights [B, H, T, T]."""
        tells = self.letter(letters) + self.place.weight
        asks = tells if self.guess == "next" else self.place.weight.expand_as(tells)
        every = torch.ones(WINDOW, WINDOW, dtype=torch.bool)
        mask = every.tril() if self.guess == "next" else ~torch.eye(WINDOW, dtype=torch.bool)
        layer = self.attention
        q, k, v = layer.split(layer.w_q(asks)), layer.split(layer.w_k(tells)), layer.split(layer.w_v(tells))
        context, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.readout(asks + layer.w_o(layer.merge(context))), weights

    def loss(self, letters: Tensor) -> Tensor:
        """Return the mean cross-entropy in bits a letter."""
        logits, wanted = self(letters)[0], letters
        if self.guess == "next":
            logits, wanted = logits[:, :-1], letters[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) / math.log(2)


def train_letters(
    text: Text,
    guess: Guess = "hidden",
    *,
    d_model: int = 32,
    heads: int = 4,
    head_width: int | None = None,
    seed: int = 0,
    steps: int = 1000,
    rate: float = 1e-2,
    hidden: int = 128,
) -> LetterModel:
    """Train a model on batches of 32 windows.

    Args:
        text: Where the windows are from.
        guess: Which letter is guessed.
        d_model: D.
        heads: H.
        head_width: K; None = D / H.
        seed: Decides the initial parameters and the windows. The latter are the same for every H and K.
        steps: How many batches.
        rate: The highest learning rate.
        hidden: F.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    model = LetterModel(guess, d_model, heads, head_width, hidden)
    fit(model, lambda: model.loss(draw_windows(text.learn, 32, generator)), steps=steps, rate=rate)
    return model.eval()


@torch.no_grad()
def bits_a_letter(model: LetterModel, text: Text) -> float:
    """Return the mean cross-entropy on 2000 windows that are held out, the same for every model."""
    return float(model.loss(draw_windows(text.held_out, 2000, torch.Generator().manual_seed(99))))
