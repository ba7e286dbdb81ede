"""Pictures and pages: what was computed or recorded, made visible."""
