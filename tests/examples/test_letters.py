"""Guesses are made from the letters that a model may see, and counted in bits."""

import math

import pytest
import torch

from letters import (
    ALPHABET,
    WINDOW,
    Guess,
    LetterModel,
    Text,
    bits_a_letter,
    draw_windows,
    read_manual,
    train_letters,
)


def untrained(guess: Guess) -> LetterModel:
    torch.manual_seed(3)
    return LetterModel(guess, 32, 4, None, 16).eval()


def windows(count: int) -> torch.Tensor:
    return torch.randint(len(ALPHABET), (count, WINDOW), generator=torch.Generator().manual_seed(5))


def test_manual_is_split_and_reduced_to_letters_and_spaces() -> None:
    text = read_manual()
    assert len(text.learn) > 5 * len(text.held_out) > 5 * 10_000
    spelled = "".join(ALPHABET[letter] for letter in text.learn.tolist())
    assert "the" in spelled.split()
    assert " " * 4 not in spelled  # topics begin and end with one, and are joined by one


def test_windows_are_pieces_of_the_text() -> None:
    text = torch.arange(40)
    for window in draw_windows(text, 50, torch.Generator().manual_seed(1)).tolist():
        assert window == list(range(window[0], window[0] + WINDOW))


def test_a_hidden_letter_does_not_help_to_guess_itself_but_each_other_one_does() -> None:
    model, (letters, *_) = untrained("hidden"), windows(1)
    before, weights = model(letters[None])
    assert list(before.shape) == [1, WINDOW, len(ALPHABET)]
    assert list(weights.shape) == [1, 4, WINDOW, WINDOW]
    for place in range(WINDOW):
        changed = letters.clone()
        changed[place] = (changed[place] + 1) % len(ALPHABET)
        moved = (model(changed[None])[0] - before).abs().amax(-1)[0]
        assert moved[place] < 1e-6
        assert (moved > 1e-5).sum() == WINDOW - 1


def test_the_next_letter_is_guessed_from_those_up_to_here() -> None:
    model, (letters, *_) = untrained("next"), windows(1)
    before, _ = model(letters[None])
    changed = letters.clone()
    changed[7] = (changed[7] + 1) % len(ALPHABET)
    moved = (model(changed[None])[0] - before).abs().amax(-1)[0]
    assert moved[:7].max() < 1e-6
    assert moved[7:].min() > 1e-5


@pytest.mark.parametrize(("guess", "ahead"), [("hidden", 0), ("next", 1)])
def test_loss_is_the_mean_of_minus_log2_of_what_was_there(guess: Guess, ahead: int) -> None:
    model, letters = untrained(guess), windows(3)
    probabilities = model(letters)[0].detach().softmax(-1)
    bits = [
        -math.log2(float(probabilities[row, place, letters[row, place + ahead]]))
        for row in range(3)
        for place in range(WINDOW - ahead)
    ]
    assert float(model.loss(letters).detach()) == pytest.approx(sum(bits) / len(bits), abs=1e-5)


def test_a_text_of_one_letter_is_soon_certain() -> None:
    text = Text(torch.full((100,), 4), torch.full((50,), 4))
    assert bits_a_letter(train_letters(text, steps=60), text) < 0.1


@pytest.mark.slow
def test_several_heads_guess_hidden_letters_better_than_one_and_than_narrow_ones() -> None:
    torch.set_num_threads(1)
    text = read_manual()
    bits = {heads: bits_a_letter(train_letters(text, heads=heads), text) for heads in (1, 8, 32)}
    assert bits[8] + 0.2 < bits[1]
    assert bits[8] + 0.3 < bits[32]
