"""What pruning can and cannot have done to a network: norms, margins, theorems, certificates."""
