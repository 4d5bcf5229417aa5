"""Graph classification sets, and folds over them."""
