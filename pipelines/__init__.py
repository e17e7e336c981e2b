"""Commands, data preparation, recipes, training, trained models, serving, comparison and checks."""
