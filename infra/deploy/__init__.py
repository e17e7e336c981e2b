"""What brings polypool up on machines of a cluster: a file for Slurm, one for containers, one for Kubernetes."""
