"""The training study: do subsets chosen by GRACE train better models, at a size that two cores can answer?"""
