"""Files that start polypool on a cluster: Slurm, containers, Kubernetes."""
