"""Linear operators and metrics: solves, roots and determinants that use the structure of a curvature matrix."""

from .metrics import AbstractMetric as AbstractMetric
from .metrics import BlocksMetric as BlocksMetric
from .metrics import DenseMetric as DenseMetric
from .metrics import DiagonalMetric as DiagonalMetric
from .metrics import KroneckerMetric as KroneckerMetric
from .metrics import StackMetric as StackMetric
from .operators import AbstractOperator as AbstractOperator
from .operators import Blocks as Blocks
from .operators import Dense as Dense
from .operators import Diagonal as Diagonal
from .operators import Kronecker as Kronecker
from .operators import Stack as Stack
