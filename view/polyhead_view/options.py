"""The options that commands which draw have in common. Needs no matplotlib to import."""

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from polyhead_client.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """What a picture looks like."""

    dpi: Annotated[int, Parameter(validator=Number(gte=10, lte=1200))] = 150
    """Dots an inch, of formats that have dots."""
    title: str | None = None
    """The title of the picture; "" for none. Default: the model, and what is shown."""
    colours: str | None = None
    """A colour map of matplotlib, such as Blues, or RdBu for values around 0."""

    @property
    def style(self) -> Mapping[str, str | None]:
        """The arguments of functions that draw."""
        return {"title": self.title, "colours": self.colours}

    def check(self, out: Path) -> None:
        """Check the suffix of an image file, and the colours, before the work.

        Raises:
            InvalidRequest: There is no such format, or no such colour map.
        """
        from polyhead_view.figures import kinds

        if out.suffix.removeprefix(".").lower() not in kinds():
            raise InvalidRequest(f"--out must end with one of {', '.join(sorted(kinds()))}, was {out}")
        self.check_colours()

    def check_colours(self) -> None:
        """Check the colours.

        Raises:
            InvalidRequest: There is no such colour map.
        """
        from polyhead_view.figures import check_colours

        if self.colours is not None:
            try:
                check_colours(self.colours)
            except ValueError as error:
                raise InvalidRequest(f"--{error}") from error

    def save(self, figure: "Figure", out: Path) -> None:
        """Write an image file; warnings go to the standard error, a line each.

        Raises:
            InvalidRequest: The picture would have too many dots.
        """
        from polyhead_view.figures import save

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                save(figure, out, dpi=self.dpi)
            except ValueError as error:
                raise InvalidRequest(f"--{error}") from error
        sys.stderr.writelines(f"{warning.message}\n" for warning in caught)


DEFAULT_PICTURE = PictureOptions()
