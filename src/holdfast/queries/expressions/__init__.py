"""Spark's expressions where there is no Spark: compiled on the driver to plain values, evaluated in Arrow by tasks."""
