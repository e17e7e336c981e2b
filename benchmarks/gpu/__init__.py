"""What a GPU alone runs: kernels, precisions, copies, memory and NCCL, checked and measured."""
