"""A job whose store and Spark's log are both on S3, twice; prints the epochs of its output. Jars: the first argument.

It has a Spark of its own: what is on the class path is decided when that starts. The settings beyond the first four are
for hadoop-aws 3.3, whose defaults Spark's Hadoop has in another form.
"""

from __future__ import annotations

import sys

from test_job import counting, expected, finished, numbers

from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import spark_session, start
from object_store import BUCKET, client, serving

with serving() as server:
    s3a = {
        "endpoint": server.endpoint,
        "access.key": server.options["key"],
        "secret.key": server.options["secret"],
        "path.style.access": "true",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "threads.keepalivetime": "60",
        "connection.establish.timeout": "5000",
        "connection.timeout": "60000",
        "connection.request.timeout": "60000",
        "multipart.purge.age": "86400",
    }
    settings = {"spark.jars": sys.argv[1], **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}}
    spark = spark_session("local[2]", settings=settings)
    url = f"s3://{BUCKET}/s3a"
    for epochs in (2, 4):
        job = start(numbers(spark), counting(), store=url, nodes=2, epochs=epochs, storage_options=server.options)
        finished(job)
    table = read_output(url, "final", server.options)
    told = list(zip(*(table[name].to_pylist() for name in ("epoch", "keys", "sum")), strict=True))
    assert told == expected(4), told
    log = client(server.options).list_objects_v2(Bucket=BUCKET, Prefix="s3a/spark/offsets/")["Contents"]
    print("offsets in the store:", len(log))
    spark.stop()
