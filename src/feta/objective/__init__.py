"""The parts of the layer objective: rectifier, data fit with its DC split, penalties."""
