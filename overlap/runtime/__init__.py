"""What generated modules run on: the operator, the launch protocol, and the rank's runtime behind it."""

from overlap.backends.base import Realization

from .operator import Operator, RangeAxis, Read, Source, TileAxis, Write

__all__ = ["Operator", "RangeAxis", "Read", "Realization", "Source", "TileAxis", "Write"]
