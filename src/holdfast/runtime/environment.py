"""Environment variables that speak for a job which does not say it itself. Apart, so that a supervisor stays small."""

LEASE = "HOLDFAST_LEASE"
"""Seconds."""
STANDBY = "HOLDFAST_STANDBY"
"""1: wait for the store while another has it."""
