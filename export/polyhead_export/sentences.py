"""Sentences on which the drift of a precision is measured where the user brings none."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from polyhead_export.errors import ExportError

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


def token_ids(
    tokenizer: Path, sentences: Sequence[str], max_tokens: int, *, prompt: str = ""
) -> list[list[int]]:
    """Return the token ids of each sentence, cut at `max_tokens`.

    Args:
        tokenizer: A `tokenizer.json`.
        sentences: Those that give no token are left out.
        max_tokens: T of the longest.
        prompt: Put before each sentence.

    Raises:
        ExportError: No sentence gives a token.
    """
    encode = Tokenizer.from_file(str(tokenizer))
    encode.no_padding()
    encode.enable_truncation(max_tokens)
    rows = [ids for text in sentences if (ids := encode.encode(prompt + text).ids)]
    if not rows:
        raise ExportError(f"{tokenizer}: sentences must give tokens, none of {len(sentences)} does")
    return rows
