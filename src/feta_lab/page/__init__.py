"""Self-contained HTML pages: functions of their blocks alone, so that the same blocks give the same bytes."""
