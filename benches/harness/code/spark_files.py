"""Trades in CSV and JSON files to Parquet with PySpark, on a local cluster.

    python spark_files.py CSV JSON OUT WORKERS MEGABYTES

Each of the WORKERS has one core and so much memory. Prints the rows that are in OUT then, and the seconds from the plan
to the last file; the start of the cluster does not count.
"""

import json
import os
import sys
import time

COLUMNS = "market string, symbol string, date string, time string, type string, size bigint, price double, link bigint"


def main() -> None:
    """Writes the files."""
    import pyspark
    from pyspark.sql import SparkSession

    csv, lines, out, workers, megabytes = sys.argv[1:]
    home = os.path.dirname(pyspark.__file__)
    os.environ.update(SPARK_HOME=home, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder = SparkSession.builder.master(f"local-cluster[{workers},1,{megabytes}]")
    settings = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": f"{megabytes}m",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # The executors are there.
    session.range(1000).repartition(4).count()
    start = time.perf_counter()
    trades = session.read.csv(csv, schema=COLUMNS, sep="|", header=True)
    trades.unionByName(session.read.json(lines, schema=COLUMNS)).write.parquet(out)
    seconds = time.perf_counter() - start
    rows = session.read.parquet(out).count()
    session.stop()
    print(json.dumps({"seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
