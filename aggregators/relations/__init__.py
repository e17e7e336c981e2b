"""Elements attend to each other, or to the other modality, before they are pooled."""
