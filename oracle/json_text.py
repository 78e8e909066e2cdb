"""JSON that people write: text that Python cannot follow is a ValueError like any other."""

import json
from typing import Any


def loads(text: str, **options: Any) -> Any:
    """What `json.loads` makes of the text. Raises ValueError, also where it is nested deeper than Python reads."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
