"""Runs one graph on one device: arrays in, arrays out."""

from polyhead_server.engine.engine import Engine
from polyhead_server.engine.runner import Arrays, Runner

__all__ = ["Arrays", "Engine", "Runner"]
