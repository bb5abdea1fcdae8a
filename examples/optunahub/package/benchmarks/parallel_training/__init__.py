from ._parallel_training import Problem, cell_names

__all__ = ["Problem", "cell_names"]
