"""Files for starting polypool on a cluster: Slurm, containers, Kubernetes."""
