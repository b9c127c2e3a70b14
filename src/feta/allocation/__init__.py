"""How a budget for the whole network is spread over its layers: one file per way, one table that names them.

But for `uniform`, which rounds layer by layer, the number of non-zeros over all layers is exactly that of the
share of all weights together, and no layer is emptied while there are weights enough.
"""

from feta.allocation.base import Allocation as Allocation
from feta.allocation.bound import Bound
from feta.allocation.erk import Erk
from feta.allocation.global_magnitude import GlobalMagnitude
from feta.allocation.sensitivity import Sensitivity
from feta.allocation.uniform import Uniform
from feta.errors import unknown_name
from feta.gates import gated

ALLOCATIONS: dict[str, type[Allocation]] = {
    allocation.name: allocation for allocation in (Uniform, GlobalMagnitude, Erk, Sensitivity, Bound)
}


@gated
def make_allocation(allocation: str | Allocation) -> Allocation:
    """An allocation by its name, or the object that is given. Raises ConfigError for anything else."""
    if not isinstance(allocation, str):
        return allocation
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation", allocation, ALLOCATIONS)
    return ALLOCATIONS[allocation]()
