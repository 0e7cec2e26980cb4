"""Compares what clients report with what the logs hold, and says what each fault cost (docs/VERDICT.md). Pure."""
