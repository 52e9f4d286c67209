"""What was fetched of each layer."""

from collections.abc import Callable, Iterator, Mapping

from polyhead_client.batch import Arrays


class LayerNotFetchedError(KeyError):
    """A layer was looked up that was not asked for."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows it quoted


class FetchedLayers(Mapping[int, Arrays]):
    """Layer → its arrays, read-only; empty where none was asked for.

    Args:
        arrays: By the layer's number.
        argument: Of `encode`, which asks for them.
    """

    def __init__(self, arrays: Mapping[int, Arrays], argument: str = "attention") -> None:
        self._arrays = arrays
        self._argument = argument

    # As encodings, they are compared by identity: arrays have no single truth.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, layer: int) -> Arrays:
        try:
            return self._arrays[layer]
        except KeyError:
            there = f"there are layers {', '.join(map(str, self._arrays))}" if self._arrays else "none was"
            raise LayerNotFetchedError(
                f"{self._argument} must have been asked for, {there}: encode(…, {self._argument}=[{layer!r}])"
            ) from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return repr(dict(self._arrays))

    def converted(self, convert: Callable[[Arrays], Arrays]) -> "FetchedLayers":
        """Return the same layers with other arrays."""
        return FetchedLayers({layer: convert(array) for layer, array in self._arrays.items()}, self._argument)


NO_ATTENTION = FetchedLayers({})
NO_CROSS_ATTENTION = FetchedLayers({}, "cross_attention")
