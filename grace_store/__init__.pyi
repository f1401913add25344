from grace_store.job.comparing import Comparison as Comparison
from grace_store.job.comparing import compare_subsets as compare_subsets
from grace_store.job.exporting import export_subset as export_subset
from grace_store.job.samples import StoredSample as StoredSample
from grace_store.job.samples import iter_samples as iter_samples
from grace_store.job.samples import open_store as open_store
from grace_store.job.scoring import score_samples as score_samples
from grace_store.job.scoring import write_score_table as write_score_table
from grace_store.job.selecting import Subset as Subset
from grace_store.job.selecting import select_samples as select_samples
from grace_store.job.sweeping import Sweep as Sweep
from grace_store.job.sweeping import sweep_settings as sweep_settings
from grace_store.score.grid import Grid as Grid
from grace_store.score.grid import SweepSpec as SweepSpec
from grace_store.score.heuristics import HeuristicSpec as HeuristicSpec
from grace_store.score.length_bias import LengthAudit as LengthAudit
from grace_store.score.spec import ScoreSpec as ScoreSpec
from grace_store.select.audit import audit_length as audit_length
from grace_store.select.table import ScoreTable as ScoreTable
from grace_store.select.table import read_scores as read_scores
from grace_store.store import Store as Store

__version__: str
