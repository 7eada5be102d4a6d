"""Sources as trees, each parsed once for all tests of the text."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parse(source: str) -> ast.Module:
    """The tree of a module's source; not to be changed."""
    return ast.parse(source)
