"""The whole model in float64 NumPy: the truth that every kernel and every lane is priced against."""
