"""The parts of a layer's objective: the activation, the data fit with its DC split, and the penalties."""
