"""The pLSTM operators: arrays in, arrays out, no parameters (arXiv 2506.11997, Section 3 and Appendix D)."""
