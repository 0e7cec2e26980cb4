"""Pages and results of checks: one self-contained HTML page with charts, and JUnit XML for CI."""
