"""A task that needs several relations at once, and one layer of attention that learns it.

A sequence has 12 tokens. Each stands at a place and has three fields: one of 16 words, its name (no other
token has it), and the name of the token that it refers to. Every token is asked for the words of others: of
the one before, the one after, the one that it refers to, and the one that it is referred to by.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, R relations, Q questions, W words.
"""

import copy
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyhead_model.plain import MultiHeadAttention
from training import fit

TOKENS = 12
WORDS = 16
TASKS = {
    "mixed": ("before", "after", "refers to", "referred by"),
    "single": ("refers to",),
    "pair": ("before", "refers to"),
    "bag": ("before", "after", "refers to", "referred by"),
}
"""The relations of each task. `bag` is one question: which words are at the four places, in any order?"""


class Sequences(NamedTuple):
    """Random sequences with their answers."""

    fields: Tensor
    """[B, T, 3]: word, name, and the name referred to."""
    places: Tensor
    """[B, T, R]: where each relation leads."""
    answers: Tensor
    """[B, T, R]: the word that is there."""


def draw_sequences(task: str, count: int, generator: torch.Generator) -> Sequences:
    """Draw `count` random sequences of a task. The ends are joined: before the first token comes the last."""
    here = torch.arange(TOKENS).expand(count, TOKENS)
    names, referred = (torch.rand(count, TOKENS, generator=generator).argsort(1) for _ in range(2))
    words = torch.randint(WORDS, (count, TOKENS), generator=generator)
    leads_to = {
        "before": (here - 1) % TOKENS,
        "after": (here + 1) % TOKENS,
        "refers to": referred,
        "referred by": referred.argsort(1),  # the inverse of a permutation
    }
    places = torch.stack([leads_to[relation] for relation in TASKS[task]], 2)
    answers = words.unsqueeze(1).expand(-1, TOKENS, -1).gather(2, places)
    return Sequences(torch.stack((words, names, names.gather(1, referred)), 2), places, answers)


class RelationModel(nn.Module):
    """Embeddings, one layer of attention with a residual, and a linear readout for each question."""

    def __init__(self, task: str, d_model: int, heads: int, head_width: int | None) -> None:
        super().__init__()
        self.task = task
        self.questions = ("bag",) if task == "bag" else TASKS[task]
        self.fields = nn.ModuleList(nn.Embedding(size, d_model) for size in (WORDS, TOKENS, TOKENS))
        self.position = nn.Embedding(TOKENS, d_model)
        self.attention = MultiHeadAttention(d_model, heads, head_width)
        self.readout = nn.Linear(d_model, len(self.questions) * WORDS)

    def embed(self, fields: Tensor) -> Tensor:
        """Add up the embeddings of fields [B, T, 3] and of places: x [B, T, D]."""
        each = [embedding(ids) for embedding, ids in zip(self.fields, fields.unbind(2), strict=True)]
        return self.position.weight + torch.stack(each).sum(0)

    def forward(self, fields: Tensor) -> tuple[Tensor, Tensor]:
        """Answer: fields [B, T, 3] → logits of the words [B, T, Q, W], attention weights [B, H, T, T]."""
        x = self.embed(fields)
        attended, weights = self.attention(x)
        return self.readout(x + attended).unflatten(2, (-1, WORDS)), weights


def targets(task: str, answers: Tensor) -> Tensor:
    """Return what a perfect model would say of answers [B, T, R]: probabilities of words [B, T, Q, W]."""
    each = F.one_hot(answers, WORDS).float()
    return each.mean(2, keepdim=True) if task == "bag" else each


def train(
    task: str = "mixed",
    *,
    d_model: int = 32,
    heads: int = 4,
    head_width: int | None = None,
    seed: int = 0,
    steps: int = 500,
    rate: float = 1e-2,
    scale: bool = True,
) -> RelationModel:
    """Train a model on batches of 32 random sequences.

    Args:
        task: One of `TASKS`.
        d_model: D.
        heads: H.
        head_width: K; None = D / H.
        seed: Decides the initial parameters and the sequences. The latter are the same for every H and K.
        steps: How many batches.
        rate: The highest learning rate.
        scale: Whether scores are divided by √K.

    Raises:
        ValueError: There is no such task, or heads would have no width.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, was {task!r}")
    if heads < 1 or not (head_width or d_model // heads) >= 1:
        raise ValueError(
            f"heads must be from 1 to d_model ({d_model}), was {heads}: for more, give head_width"
        )
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    model = RelationModel(task, d_model, heads, head_width)
    if not scale:  # undo the division before it happens
        root = math.sqrt(model.attention.head_width)
        model.attention.w_q.register_forward_hook(lambda _module, _inputs, queries: queries * root)

    def loss() -> Tensor:
        fields, _, answers = draw_sequences(task, 32, generator)
        logits, _ = model(fields)
        return F.cross_entropy(logits.flatten(0, 2), targets(task, answers).flatten(0, 2))

    fit(model, loss, steps=steps, rate=rate)
    return model.eval()


def held_out(task: str, count: int = 500) -> Sequences:
    """Return sequences that are the same for every model of a task, and that none was trained on."""
    return draw_sequences(task, count, torch.Generator().manual_seed(99))


@torch.no_grad()
def accuracy_by_question(model: RelationModel) -> dict[str, float]:
    """Return the share of right answers to each question, on `held_out`.

    If k words are to be named, the share of them among the k that the model finds most likely.
    """
    fields, _, answers = held_out(model.task)
    wanted = targets(model.task, answers) > 0  # [B, T, Q, W]
    count = wanted.sum(-1, keepdim=True)
    rank = model(fields)[0].argsort(-1, descending=True).argsort(-1)
    right = ((rank < count) & wanted).sum(-1) / count.squeeze(-1)
    return dict(zip(model.questions, right.mean((0, 1)).tolist(), strict=True))


def accuracy(model: RelationModel) -> float:
    """Return the share of right answers, all questions together."""
    by_question = accuracy_by_question(model)
    return sum(by_question.values()) / len(by_question)


def silence(model: RelationModel, heads: Iterable[int]) -> RelationModel:
    """Return a copy of a model in which some heads add nothing: their columns of W_O are zero.

    Raises:
        ValueError: There is no such head.
    """
    heads = [*heads]
    for head in heads:
        if not 0 <= head < model.attention.heads:
            raise ValueError(f"heads must be from 0 to {model.attention.heads - 1}, was {head}")
    silenced = copy.deepcopy(model)
    width = model.attention.head_width
    for head in heads:
        silenced.attention.w_o.weight.data[:, head * width : (head + 1) * width] = 0
    return silenced


@torch.no_grad()
def weight_at_relations(model: RelationModel) -> Tensor:
    """Return where heads look: the mean weight at the place that each relation leads to, [H, R]."""
    fields, places, _ = held_out(model.task)
    _, weights = model(fields)
    every_head = places.unsqueeze(1).expand(-1, weights.shape[1], -1, -1)  # [B, H, T, R]
    at: Tensor = weights.gather(3, every_head).mean((0, 2))
    return at
