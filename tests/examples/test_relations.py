"""Sequences are asked what they say they are, and models that learn to answer do so as lessons tell it."""

import statistics
from collections.abc import Callable

import pytest
import torch

from relations import (
    TASKS,
    TOKENS,
    RelationModel,
    accuracy,
    accuracy_by_question,
    draw_sequences,
    held_out,
    silence,
    targets,
    train,
    weight_at_relations,
)

BY_RELATION: dict[str, Callable[[int, list[int], list[int]], int]] = {
    "before": lambda place, names, referred: place - 1 if place else TOKENS - 1,
    "after": lambda place, names, referred: place + 1 if place < TOKENS - 1 else 0,
    "refers to": lambda place, names, referred: names.index(referred[place]),
    "referred by": lambda place, names, referred: referred.index(names[place]),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # so small matrices are slower on several


@pytest.fixture(scope="module")
def four() -> list[RelationModel]:
    return [train(heads=4, seed=seed) for seed in range(3)]


def untrained(task: str = "mixed") -> RelationModel:
    torch.manual_seed(7)
    return RelationModel(task, 32, 4, None).eval()


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_a_plain_search(task: str) -> None:
    sequences = draw_sequences(task, 20, torch.Generator().manual_seed(11))
    for fields, places, answers in zip(*(each.tolist() for each in sequences), strict=True):
        words, names, referred = (list(column) for column in zip(*fields, strict=True))
        assert sorted(names) == list(range(TOKENS))
        for place in range(TOKENS):
            leads_to = [BY_RELATION[relation](place, names, referred) for relation in TASKS[task]]
            assert places[place] == leads_to
            assert answers[place] == [words[there] for there in leads_to]


def test_training_sequences_differ_by_seed_and_held_out_ones_do_not() -> None:
    first, second = (draw_sequences("mixed", 5, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert not torch.equal(first.fields, second.fields)
    assert torch.equal(held_out("mixed").fields, held_out("mixed").fields)


def test_targets_of_a_bag_are_shares_of_words_and_of_others_one_word_each() -> None:
    answers = torch.tensor([[[3, 5, 3, 9]]])
    assert torch.equal(targets("mixed", answers).argmax(-1), answers)
    (bag,) = targets("bag", answers)[0, 0]
    assert {word: share for word, share in enumerate(bag.tolist()) if share} == {3: 0.5, 5: 0.25, 9: 0.25}


@pytest.mark.parametrize("task", TASKS)
def test_accuracy_counts_what_a_loop_counts(task: str) -> None:
    model, (fields, _, answers) = untrained(task), held_out(task)
    logits, _ = model(fields)
    right = torch.zeros(len(model.questions), dtype=torch.float64)
    for batch in range(len(fields)):
        for token in range(TOKENS):
            wanted = [{word} for word in answers[batch, token].tolist()]
            if task == "bag":
                wanted = [set(answers[batch, token].tolist())]
            for question, words in enumerate(wanted):
                likely = logits[batch, token, question].topk(len(words)).indices.tolist()
                right[question] += len(words & set(likely)) / len(words)
    shares = right / (len(fields) * TOKENS)
    assert list(accuracy_by_question(model).values()) == pytest.approx(shares.tolist(), abs=1e-5)
    assert accuracy(model) == pytest.approx(shares.mean().item(), abs=1e-5)


def test_a_silenced_head_adds_nothing_and_the_model_keeps_it() -> None:
    model, fields = untrained(), held_out("mixed").fields[:4]
    before = model(fields)[0]
    x = model.embed(fields)
    _, weights = model.attention(x)
    values = model.attention.split(model.attention.w_v(x))
    context = weights @ values
    context[:, [1, 3]] = 0
    expected = model.readout(x + model.attention.w_o(model.attention.merge(context)))

    silenced = silence(model, [1, 3])(fields)[0]
    assert torch.allclose(silenced.flatten(2), expected, atol=1e-5)
    assert torch.equal(model(fields)[0], before)
    assert not torch.allclose(silenced, before, atol=1e-3)


@pytest.mark.parametrize("heads", [[4], [0, -1]])
def test_heads_that_are_not_there_cannot_be_silenced(heads: list[int]) -> None:
    with pytest.raises(ValueError, match=f"heads must be from 0 to 3, was {heads[-1]}"):
        silence(untrained(), heads)


def test_settings_that_make_no_model_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="task must be one of mixed, single, pair, bag, was 'mxied'"):
        train("mxied")
    for heads in (0, 33):
        with pytest.raises(
            ValueError, match=rf"from 1 to d_model \(32\), was {heads}: for more, give head_width"
        ):
            train(heads=heads)


def test_weight_at_relations_is_the_mean_over_queries() -> None:
    model, (fields, places, _) = untrained(), held_out("mixed")
    weights = model(fields)[1].detach()
    at = weight_at_relations(model)
    queries = [(batch, token) for batch in range(len(fields)) for token in range(TOKENS)]
    mean = statistics.fmean(float(weights[b, 2, t, places[b, t, 1]]) for b, t in queries)
    assert float(at[2, 1]) == pytest.approx(mean, abs=1e-5)


def test_scores_are_not_divided_without_scale() -> None:
    scaled, raw = (train(steps=1, heads=4, rate=1e-9, scale=scale) for scale in (True, False))
    fields = held_out("mixed").fields[:2]
    queries, keys = (
        scaled.attention.split(project(scaled.embed(fields)))
        for project in (scaled.attention.w_q, scaled.attention.w_k)
    )
    scores = queries @ keys.transpose(2, 3)
    assert torch.allclose(raw(fields)[1], scores.softmax(-1), atol=1e-4)
    assert torch.allclose(scaled(fields)[1], (scores / 8**0.5).softmax(-1), atol=1e-4)


def test_training_again_gives_the_same() -> None:
    first, second = (train(steps=3, seed=5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.slow
def test_four_relations_take_several_heads_that_are_wide_enough(four: list[RelationModel]) -> None:
    by_heads = {
        heads: [accuracy(train(heads=heads, seed=seed)) for seed in range(2)] for heads in (1, 8, 16, 32)
    }
    means = {heads: statistics.fmean(values) for heads, values in by_heads.items()}
    assert max(map(accuracy, four)) > 0.95
    assert means[8] > 0.9
    assert means[16] < means[8]
    assert max(by_heads[1]) < 0.5
    assert max(by_heads[32]) < 0.5


@pytest.mark.slow
def test_one_relation_takes_one_head_and_a_wider_one_does_not_take_four() -> None:
    assert accuracy(train("single", heads=1)) > 0.95
    assert accuracy(train("bag", heads=1, steps=1000)) > 0.8
    assert accuracy(train(heads=1, head_width=128)) < 0.5


@pytest.mark.slow
def test_each_of_four_heads_takes_a_relation_and_alone_can_answer_for_it(four: list[RelationModel]) -> None:
    model = max(four, key=accuracy)
    at = weight_at_relations(model)
    full = accuracy_by_question(model)
    assert sorted(at.argmax(1).tolist()) == [0, 1, 2, 3]
    for head, relation in enumerate(at.argmax(1).tolist()):
        assert at[head, relation] > 0.8
        left = list(accuracy_by_question(silence(model, [head])).values())
        lost = [before - after for before, after in zip(full.values(), left, strict=True)]
        assert lost[relation] > 0.5
        assert all(cost < 0.1 for other, cost in enumerate(lost) if other != relation)
