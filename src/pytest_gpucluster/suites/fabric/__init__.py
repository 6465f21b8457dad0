"""InfiniBand, peer memory, and the path from GPU to NIC."""
