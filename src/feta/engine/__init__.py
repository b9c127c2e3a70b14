"""The engine: the only room that walks a model.

run      the original and the pruned network, the data, and where they live
select   which layers are pruned, and to which sparsity
layer    one layer's turn: its rows, its problems, its solution checked and written, its error measured
walk     all layers in order of execution
prune    the call that users make
"""
