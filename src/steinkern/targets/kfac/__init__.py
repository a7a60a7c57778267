"""Kronecker-factored curvature of networks (KFAC).

- `rules`: the blocks of the curvature, from the types of the layers;
- `uses`: finds the equations of a model's jaxpr that use the weights of a block, in one walk, and records the inputs
  and the output gradients of every use in a forward and a backward pass;
- `equations`: reads the inputs of the weights from such an equation, a product, a convolution or a lookup;
- `factors`: computes the blocks of the curvature from the recorded inputs and gradients;
- `curvature`: `KFAC` itself.
"""

from .curvature import KFAC as KFAC
from .rules import DiagonalBlock as DiagonalBlock
from .rules import ExactBlock as ExactBlock
from .rules import KroneckerBlock as KroneckerBlock
from .rules import UnitwiseBlock as UnitwiseBlock
