#!/bin/sh
# A job on YARN: the Python environment travels packed, so the cluster's machines need Java 17 and nothing else.
#   deploy/yarn/submit.sh my_job.py /mnt/shared/counts
# The store is a folder that every machine mounts: on hdfs:// two drivers could claim it at once.
# my_job.py calls its own build() and waits: build().awaitTermination(). YARN starts a driver that died again.
set -eu
job=$1
store=$2
case $store in
  *://*)
    echo "store $store: give a folder that every machine mounts, such as /mnt/shared/counts" >&2
    exit 2
    ;;
esac
environment=${ENVIRONMENT:-holdfast-environment.tar.gz}
if [ ! -f "$environment" ]; then
  python3 -m venv packed
  packed/bin/pip install --quiet holdfast venv-pack
  packed/bin/venv-pack --prefix packed --output "$environment"
fi
exec "${SPARK_HOME:?}/bin/spark-submit" \
  --master yarn --deploy-mode cluster \
  --archives "$environment#environment" \
  --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=environment/bin/python \
  --conf spark.executorEnv.PYSPARK_PYTHON=environment/bin/python \
  --conf spark.yarn.appMasterEnv.HOLDFAST_LEASE=6 \
  --conf spark.yarn.appMasterEnv.HOLDFAST_STANDBY=1 \
  --conf spark.yarn.maxAppAttempts=10 \
  --conf spark.yarn.am.attemptFailuresValidityInterval=1h \
  --conf spark.task.maxFailures=1 --conf spark.stage.maxConsecutiveAttempts=1 --conf spark.locality.wait=60s \
  --conf spark.python.daemon.module=holdfast.runtime.spark.daemon \
  --conf spark.dynamicAllocation.enabled=false \
  --num-executors "${EXECUTORS:-4}" --executor-cores 2 --executor-memory 2g \
  --conf spark.executor.memoryOverhead=2g \
  "$job" "$store"
