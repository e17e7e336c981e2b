"""Visual question answering: answers, their official accuracy, the model, the report."""
