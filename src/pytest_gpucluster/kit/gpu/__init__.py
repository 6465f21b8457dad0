"""GPUs: nvidia-smi, NVLink, Xids, PCIe."""
