"""Networks rebuilt smaller: whole neurons and channels removed, the layers behind them refitted."""
