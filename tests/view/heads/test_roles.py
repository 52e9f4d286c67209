"""Roles of heads, by their scores."""

import numpy as np
import pytest

from polyhead_view.heads.roles import nearest_role, roles_of

SCORES = ("previous", "first", "normalised_entropy", "induction", "unknown")


@pytest.mark.parametrize(
    ("means", "roles"),
    [
        ([0.5, 0, 0, 0, 1], ["previous token"]),
        ([0.499, 0, 0.849, 0, 1], []),
        ([0.6, 0.7, 0.85, 0.5, 0], ["previous token", "first token", "induction", "broad"]),
        ([np.nan] * 5, []),
    ],
)
def test_a_head_has_every_role_whose_threshold_it_reaches(means: list[float], roles: list[str]) -> None:
    assert [role.name for role in roles_of(SCORES, np.array(means))] == roles


@pytest.mark.parametrize(
    ("means", "nearest"),
    [
        ([0.25, 0.3, 0.8, np.nan, 1], "first token"),
        ([0.24, 0.1, 0.8, 0.2, 1], None),
        ([np.nan] * 5, None),
    ],
)
def test_the_nearest_role_is_one_of_which_at_least_half_of_the_threshold_is_reached(
    means: list[float], nearest: str | None
) -> None:
    role = nearest_role(SCORES, np.array(means))

    assert (role and role.name) == nearest
