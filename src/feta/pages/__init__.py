"""Self-contained HTML pages, and what notebooks show: functions of plain data, the same bytes for the same data."""
