"""`polyhead infer`: encode sentences and show the result."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from polyhead_client.errors import InvalidRequest
from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions, parse_indices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyhead_client.encoding import Encoding

app = App(name="infer")


def _no_option(_: object, text: str) -> None:
    """Reject misspelt options: texts may begin with a hyphen, because `-` means the standard input."""
    if text.startswith("-") and text != "-" and not any(letter.isspace() for letter in text):
        raise CycloptsError(msg=f'Unknown option: "{text}".')  # a ValueError would be shown with all texts


@app.default
def infer(
    *texts: Annotated[str, Parameter(allow_leading_hyphen=True, validator=_no_option)],
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    text_pair: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)] = (),
    input: Path | None = None,
    memory: Path | None = None,
    attention: str | None = None,
    cross_attention: str | None = None,
    heads: str | None = None,
    scores: str | None = None,
    top: Annotated[int, Parameter(validator=Number(gte=1))] = 3,
    special: bool = False,
    prompt_name: str | None = None,
    truncate: bool = False,
    json: bool = False,
    npz: Path | None = None,
) -> None:
    """Run an encoder on sentences, and show what comes out.

    ```sh
    polyhead infer "A cat sat." "The dog ran away."
    polyhead infer "The cat sat on the mat." --attention -1 --heads 0,3
    polyhead infer "What is ONNX?" --text-pair "A format." --model reranker
    cut -f 2 texts.tsv | polyhead infer - --json > vectors.json
    ```

    Parameters
    ----------
    connection
        The server, and one of its models.
    texts
        The sentences; - reads them from the standard input, one per line.
    text_pair
        The second text of a pair, such as a reranker's passage; once for each sentence, in their order.
    input
        Instead of sentences: an .npy file of vectors [T, D] or [B, T, D], or of token ids [T] or [B, T].
    memory
        An .npy file of the vectors that those of --input attend to, [S, D] or [B, S, D], for a model with
        cross-attention.
    attention
        Layers whose attention weights to fetch: 5, or 0,5, or -1 for the last, or all.
    cross_attention
        Likewise those to the memory, of decoder blocks, which attend to both.
    heads
        Heads of those layers: 3, or 0,3, or 0:4. Default: all.
    scores
        A score of all heads to show, such as entropy or previous, or all. The model needs an insight graph.
    top
        The number of strongest edges to show for each head.
    special
        Also show edges from and to special tokens such as [CLS] and [SEP].
    prompt_name
        The prompt that the server puts before the sentences, such as query. Default: the model's own.
    truncate
        Truncate sentences that are too long, instead of rejecting them.
    json
        Write JSON: pooled vectors, the strongest edges, and the scores.
    npz
        Also write the result to this file, for Encoding.load and NumPy: output.N, pooled, logits, lengths,
        tokens.N, attention.LAYER.N, cross_attention.LAYER.N for the sequence N = 0, 1, ...; scores.NAME and
        weighted_scores.NAME, [B, L, H].
    """
    from polyhead_client.formats import as_json
    from polyhead_client.report import print_report

    if npz is not None and npz.suffix != ".npz":  # NumPy would append the suffix
        raise InvalidRequest(f"--npz must be a file that ends with .npz, was {npz}")
    inputs = _inputs(texts, input)
    with connection.open() as client:
        encoding: Encoding = client.encode(
            inputs,
            text_pair=list(text_pair) or None,
            memory=None if memory is None else _load("--memory", memory),
            model=connection.model,
            attention=_layers("--attention", attention),
            cross_attention=_layers("--cross-attention", cross_attention),
            heads=None if heads is None else parse_indices("--heads", heads),
            scores=scores is not None,
            prompt_name=prompt_name,
            truncate=truncate,
        )
    labels = [item if isinstance(item, str) else None for item in inputs]
    shown = _scores(encoding, scores)
    if npz is not None:
        encoding.save(npz)
    if json:
        sys.stdout.write(as_json(encoding, labels, shown, top=top, special=special) + "\n")
    else:
        print_report(encoding, labels, shown, top=top, special=special)


def _layers(option: str, attention: str | None) -> bool | list[int] | None:
    if attention is None:
        return None
    return True if attention == "all" else parse_indices(option, attention)


def _scores(encoding: "Encoding", name: str | None) -> "dict[str, NDArray[Any]]":
    """Return the scores to show, [B, L, H] each, by name."""
    if encoding.scores is None or name is None:
        return {}
    return {each: encoding.scores[each] for each in (encoding.scores.names if name == "all" else [name])}


def _inputs(texts: tuple[str, ...], path: Path | None) -> list[Any]:
    """Return the inputs as a list of sequences, so that results are lists as well."""
    if path is not None:
        if texts:
            raise InvalidRequest("give either sentences or --input, not both")
        return _load("--input", path)
    sentences: list[str] = []
    for text in texts:
        sentences += (line.strip() for line in sys.stdin if line.strip()) if text == "-" else [text]
    if not sentences:
        raise InvalidRequest("give a sentence, - for the standard input, or --input FILE.npy")
    return sentences


def _load(option: str, path: Path) -> list[Any]:
    from polyhead_client.files import load_array

    array = load_array(option, path)
    single = array.ndim == (2 if array.dtype.kind == "f" else 1)
    return [array] if single else list(array)
