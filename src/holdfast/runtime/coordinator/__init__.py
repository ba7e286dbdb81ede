"""What decides: events in, instructions out. Pure: no clock, thread, file or Spark."""
