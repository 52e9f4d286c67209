"""NumPy's types of the manifest's datatypes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

DTYPES: Mapping[str, Any] = MappingProxyType(
    {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32}
)
