"""The word count with PySpark on this machine.

    python spark.py INPUT CORES FOLDER HOW

HOW is `reduce`, where Spark adds up numbers before it sends them, or `group`, where a reducer gets all of a word. It
prints the counts and the seconds that they took; the start of the JVM does not count.
"""

import json
import operator
import os
import sys
import time

from mapper import words

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Counts the words."""
    from pyspark.sql import SparkSession

    source, cores, folder, how = sys.argv[1:]
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    settings = {
        "spark.driver.memory": "4g",
        "spark.local.dir": folder,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.addPyFile(os.path.join(HERE, "mapper.py"))
    start = time.perf_counter()
    pairs = session.sparkContext.textFile(source).mapPartitions(words).map(lambda word: (word, 1))
    counts = pairs.reduceByKey(operator.add) if how == "reduce" else pairs.groupByKey().mapValues(sum)
    answer = dict(counts.collect())
    seconds = time.perf_counter() - start
    session.stop()
    print(json.dumps({"seconds": seconds, "answer": answer}))


if __name__ == "__main__":
    main()
