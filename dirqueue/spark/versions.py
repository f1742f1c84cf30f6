"""Which versions of pyspark work; one that does not is refused in one sentence.

Layer: edges.
"""

from __future__ import annotations

import re

from dirqueue.errors import SettingsError

#: Where Python can be a source of data at all, and where it can be the source and sink of streams with limits.
BATCHES = (4, 0)
STREAMS = (4, 2)


def check_version(needed: tuple[int, int], what: str) -> None:
    """Raise SettingsError if the pyspark that is installed is older than `what` needs."""
    import pyspark

    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if found and (int(found[1]), int(found[2])) < needed:
        raise SettingsError(
            f"{what} needs pyspark {needed[0]}.{needed[1]} or newer, and this is {pyspark.__version__}: "
            f"pip install 'pyspark>={STREAMS[0]}.{STREAMS[1]},<5'"
        )
