"""Samplers: Stein, Newton, Langevin and Hamiltonian steps, ensembles, and the rules that build a kernel at a step."""

from .auto import AutoSVGD as AutoSVGD
from .ensemble import Ensemble as Ensemble
from .ensemble import ensemble as ensemble
from .half_bayesian import HalfBayesian as HalfBayesian
from .half_bayesian import half_bayesian as half_bayesian
from .hamiltonian import Hamiltonian as Hamiltonian
from .kernel_rule import AbstractKernelRule as AbstractKernelRule
from .kernel_rule import AnchorMixture as AnchorMixture
from .kernel_rule import AverageMetric as AverageMetric
from .kernel_rule import FixedKernel as FixedKernel
from .kernel_rule import MetricSettings as MetricSettings
from .langevin import PSGLD as PSGLD
from .langevin import SGLD as SGLD
from .langevin import psgld as psgld
from .langevin import sgld as sgld
from .sampler import AbstractSampler as AbstractSampler
from .sampler import Info as Info
from .sampler import Traits as Traits
from .sampler import target_at as target_at
from .stein import SVGD as SVGD
from .stein import SVN as SVN
from .stein import GradientFreeSVGD as GradientFreeSVGD
from .stein import gradient_free_svgd as gradient_free_svgd
from .stein import matrix_svgd as matrix_svgd
from .stein import svgd as svgd
from .stein import svn as svn
