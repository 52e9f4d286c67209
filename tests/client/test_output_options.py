"""Options of outputs are checked, also where earlier ones that equal them were valid."""

from typing import Any

import pytest

from polyhead_client import InvalidRequest
from polyhead_client.output_options import read_options


@pytest.mark.parametrize("flag", [1, 1.0, [], {}])
def test_what_equals_a_flag_is_none_also_after_a_valid_call(flag: Any) -> None:
    read_options(text=False, output=True)
    with pytest.raises(InvalidRequest, match="output must be True or False, was "):
        read_options(text=False, output=flag)
