"""Results of benchmarks as files: the paper's table, and a folder as VLMEvalKit writes it."""

from __future__ import annotations

from pathlib import Path

TABLE = """\
run,Hallusion,SQA,MMBench,MME-P,MME-C,MMT-SI,MMT-MI,MathVista,MathVision-MINI,MathVision
Full,43.7,80.2,69.3,1517.3,656.1,55.0,53.4,52.5,16.4,14.7
Random,45.5,84.5,72.6,1495.5,653.2,57.4,54.8,52.3,16.4,13.9
Longest,46.3,83.0,73.6,1494.5,687.5,56.4,54.6,51.3,15.8,14.5
Stepmax,46.9,83.8,73.7,1477.7,637.5,56.7,54.5,52.6,15.5,15.1
LESS,44.6,83.1,70.2,1511.4,668.6,56.0,53.7,49.9,18.8,14.3
ICONS,46.3,82.6,71.5,1497.0,675.0,55.5,53.8,51.0,13.2,14.4
CADC,44.6,84.4,73.1,1498.9,630.7,57.5,55.2,54.0,16.1,16.1
GRACE,46.8,85.0,73.8,1512.3,682.9,58.5,56.3,54.2,21.7,17.2
"""


def paper_table(tmp_path: Path) -> Path:
    """Write the paper's main table."""
    path = tmp_path / "paper.csv"
    path.write_text(TABLE)
    return path


def vlmevalkit_folder(tmp_path: Path) -> Path:
    """What VLMEvalKit writes for a run: a CSV a benchmark, quoted, several rows."""
    files = {
        "m_HallusionBench_score.csv": '"split","aAcc","fAcc","qAcc"\n"Overall","60","40","32"\n"VD","1","1","1"\n',
        "m_ScienceQA_TEST_acc.csv": '"split","Overall","biology"\n"test","0.802","0.9"\n',
        "m_MMBench_DEV_EN_V11_acc.csv": '"split","Overall","AR"\n"dev","0.693","0.5"\n',
        "m_MME_score.csv": '"perception","reasoning","OCR"\n"1517.3","656.1","140"\n',
        "m_MMT-Bench_VAL_acc.csv": '"split","Overall"\n"VAL","0.1"\n"ALL","0.55"\n',
        "m_MMT-Bench_VAL_MI_acc.csv": '"split","Overall"\n"ALL","0.534"\n',
        "sub/m_MathVista_MINI_gpt-4o_score.csv": '"Task&Skill","tot","acc"\n"Overall","1000","52.5"\n"x","1","3"\n',
        "m_MathVision_MINI_gpt-4o_score.csv": '"Subject","tot","hit","acc"\n"Overall","304","50","16.4"\n',
        "m_MathVision_gpt-4o_score.csv": '"Subject","tot","hit","acc"\n"Overall","3040","447","14.7"\n',
        "m_Unknown_score.csv": "a,b\n1,2\n",
    }
    run = tmp_path / "full"
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return run
