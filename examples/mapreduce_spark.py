"""The word count of examples/mapreduce.py on Spark: documents are read out of a queue, and one transaction ends it.

The documents are pinned as one lot; executors read them, count and sum; then the lot goes and the result comes in one
transaction. A driver that dies before it has changed nothing: after `--timeout` seconds the documents are back.
By hand, with `pip install 'dirqueue[spark]'`: `python examples/mapreduce_spark.py README.md docs/*.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile

from mapreduce import made_up, read, verify
from pyspark.sql import SparkSession

import dirqueue.spark
from dirqueue import Space

#: A word, as Python's \w has it.
NO_WORD = r"(?U)\\W+"


def count_all(spark: SparkSession, space: Space[bytes], timeout: float) -> None:
    """Take all documents out of `map` and put the counts of their words into `out`, in one transaction."""
    transaction = space.transaction()
    queue = space.queue("map").path
    with dirqueue.spark.claim(spark, queue, timeout=timeout, transaction=transaction) as documents:
        words = documents.selectExpr(f"explode(split(lower(cast(value as string)), '{NO_WORD}')) as word")
        counts = dict(words.where("word <> ''").groupBy("word").count().collect())
        if counts:
            transaction.put("out", json.dumps(dict(sorted(counts.items()))))


def main() -> int:
    """Count the words of files, or of a text that is made up, and compare with a plain count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="texts to count the words of")
    parser.add_argument("--documents", type=int, default=300, help="texts to make up (default %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        help="seconds until the documents of a driver that died are back (default %(default)s)",
    )
    options = parser.parse_args()
    texts = read(options.files) or made_up(options.documents)
    with tempfile.TemporaryDirectory(prefix="dirqueue-mapreduce-") as path, Space(path) as space:
        space.queue("map").put_many(text.encode() for text in texts)
        spark = dirqueue.spark.session("local[2]")
        try:
            count_all(spark, space, options.timeout)
        finally:
            spark.stop()
        results = [json.loads(message.body) for message in space.queue("out").peek()]
        return verify(texts, results) if space.empty("map") else 1


if __name__ == "__main__":
    sys.exit(main())
