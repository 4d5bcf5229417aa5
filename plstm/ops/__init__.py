"""Operators: arrays in, arrays out, no parameters. pLSTM on grids, graphs and sequences (arXiv 2506.11997, Section 3
and Appendix D), and those of the models beside it."""
