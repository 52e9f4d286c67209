"""docker-compose.yml as Compose reads it, without an engine: interpolated, merged and parsed."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-+])((?:[^{}]|\{[^{}]*\})*))?\}")


def services(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The services, under an environment; none is the file's defaults."""
    found: dict[str, Any] = read(environment)["services"]
    return found


def read(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The whole file, under an environment."""
    yaml: Any = importlib.import_module("yaml")
    parsed: dict[str, Any] = yaml.safe_load(interpolate(TEXT, environment or {}))
    return parsed


def interpolate(text: str, environment: Mapping[str, str]) -> str:
    """Puts values in the place of `${NAME}`, `${NAME:-value}`, `${NAME-value}` and `${NAME:+value}`."""

    def value(match: re.Match[str]) -> str:
        name, operator, other = match[1], match[2] or "", match[3] or ""
        given = environment.get(name)
        present = bool(given) if operator.startswith(":") else given is not None
        if operator.endswith("+"):
            return other if present else ""
        return str(given) if present and given is not None else interpolate(other, environment)

    return _VARIABLE.sub(value, text)


def variables() -> set[str]:
    """The names of all variables."""
    return set(re.findall(r"\$\{(\w+)", TEXT))


def seconds(duration: str) -> float:
    """Reads `35s` and `2m`."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smh])", duration))
