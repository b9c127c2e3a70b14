"""The paper's theorems, as printed and in a form that is sound, and intrinsic dimension."""
