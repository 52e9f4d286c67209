"""How far a precision is from fp32: what that is measured on, and by which measures.

The export measures the precision in which it writes a family, the server that in which it computes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

SENTENCES = (
    "Yes.",
    "What time is it?",
    "The cat that I saw yesterday sat on the mat.",
    "A dog ran across the road and a cyclist had to brake hard.",
    "How do I reset the password of my account?",
    "I cannot log in since the update; the page says that my session has expired.",
    "Please send the invoice for March to our new address.",
    "The meeting has been moved from Tuesday morning to Thursday at half past three.",
    "Rain is expected in the north, with strong winds along the coast and snow above 900 metres.",
    "Water boils at a lower temperature in the mountains because the air pressure is lower there.",
    "The heart pumps blood through two circuits: one through the lungs and one through the rest of the body.",
    "Patients with a fever above 39 degrees were excluded from the second trial.",
    "Take one tablet twice a day with food, and do not stop before the end of the week.",
    "Neither party may assign this agreement without the prior written consent of the other.",
    "The court held that the notice had been given too late and dismissed the claim.",
    "Shares fell by 4.2 % after the company cut its forecast for the year.",
    "Inflation slowed to 2.1 percent in August, while unemployment hardly changed.",
    "Beat the eggs with the sugar until pale, fold in the flour and bake for 25 minutes at 180 °C.",
    "This soup needs salt, a little lemon, and much more time.",
    "We walked along the river until it got dark and then took the last bus home.",
    "The museum is closed on Mondays; on all other days it opens at ten.",
    "Trains to the airport leave every twenty minutes from platform 4.",
    "She won the final in straight sets and thanked her coach, her family and the crowd.",
    "The home team scored twice in the last five minutes.",
    "He had read the letter so often that the paper had begun to tear along the folds.",
    "Nobody in the village remembered who had planted the old lime tree in front of the church.",
    "Language models assign a probability to every sequence of words.",
    "Multi-head attention lets every token look at all others, several times at once.",
    "The function returns None if the key is missing, so check the result before you use it.",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 10;",
    "def mean(values): return sum(values) / len(values)",
    "git rebase --onto main feature~3 feature",
    "The battery lasts two days, the camera is mediocre, and the screen scratches far too easily.",
    "Terrible service. We waited for an hour and the food was cold.",
    "Best headphones I have ever owned, and they cost half as much as the others!",
    "lol that was sooo funny",
    "Does this jacket run small? I usually wear a medium.",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen, with the energy of light.",
    "A prime number has exactly two divisors, so 1 is not prime.",
    "The bridge, built in 1893 and widened twice since, carries 40,000 vehicles a day.",
    "Ein Satz, der nicht englisch ist, gehört auch dazu.",
    "Où se trouve la gare la plus proche, s'il vous plaît ?",
    "El perro duerme en la cocina.",
    "Contact: support@example.com, +00 123 456 789, Mon-Fri 9-17h",
    "ISO 8601 writes the date as 2026-03-14 and the time as 15:09:26.",
    "Although the committee had discussed the proposal at length, had asked two experts for an opinion, and "
    "had even visited the site in the pouring rain, it could not agree on whether the new library should "
    "stand next to the school, where land is cheap, or in the centre, where people already go, and so the "
    "decision was postponed to the next session, for the third time in a row.",
    "First the glacier carved the valley; then the ice melted, the sea rose and filled it, and what had been "
    "a river bed became a fjord, deep in the middle and shallow at its mouth, where the moraine lies.",
)
"""What is measured on where the user brings no sentences."""


def deviation(actual: NDArray[np.floating[Any]], expected: NDArray[np.floating[Any]]) -> float:
    """Return the largest |actual − expected| / max(1, |expected|): absolute below 1, relative above.

    The result is infinite where either array holds NaN or infinity. Both arrays must have the same shape.
    """
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))
    worst = float(difference.max(initial=0.0))
    return worst if np.isfinite(worst) else float("inf")


def change(actual: NDArray[np.floating[Any]], expected: NDArray[np.floating[Any]]) -> float:
    """Return the `deviation`, where two numbers that are both undefined are equal."""
    undefined = np.isnan(actual) & np.isnan(expected)
    return deviation(np.where(undefined, 0, actual), np.where(undefined, 0, expected))


def cosines_of(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """Return the cosine of each pair of vectors [N, D]: [N]; 1 where both are zero, 0 where only one is."""
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    norm, its_norm = (np.linalg.norm(each, axis=-1) for each in (ours, theirs))
    scale = norm * its_norm
    products = (ours * theirs).sum(axis=-1)
    cosines: NDArray[np.float64] = np.where(
        scale > 0, products / np.where(scale > 0, scale, 1), norm == its_norm
    )
    return cosines
