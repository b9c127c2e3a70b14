"""What two networks provably have in common, on samples and around them."""
