"""The results of runs and their display: particles, predictions, reports and plots."""

from . import plot as plot
from .class_probabilities import ClassProbabilities as ClassProbabilities
from .combine import combine as combine
from .outcome import ChainRecord as ChainRecord
from .outcome import Cost as Cost
from .outcome import Diagnostics as Diagnostics
from .outcome import Faults as Faults
from .outcome import History as History
from .outcome import Status as Status
from .prediction import Prediction as Prediction
from .result import DivergedError as DivergedError
from .result import Result as Result
from .saving import load as load
