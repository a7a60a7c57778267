"""Kronecker-factored curvature of networks (KFAC): which blocks, where weights are used, what the factors are.

- `rules`: which arrays of a layer make which block;
- `uses`: where a model uses the weights of a block, read off its jaxpr;
- `recording`: a forward and backward pass that keeps the inputs and the output gradients of every use;
- `factors`: from these to blocks of the curvature;
- `curvature`: `KFAC` itself.
"""

from .curvature import KFAC as KFAC
from .rules import DiagonalBlock as DiagonalBlock
from .rules import ExactBlock as ExactBlock
from .rules import KroneckerBlock as KroneckerBlock
from .rules import UnitwiseBlock as UnitwiseBlock
