"""What comes after pruning: the surviving weights fitted to the original network, or trained on."""
