"""The laboratory: data sets, networks, training, the one judge, records and what is drawn from them."""
