# Folds `nvidia-smi nvlink -e`: 18 links of 8 GPUs print up to 180 kB. What stays: each GPU's line, the number of harmless
# counters, and the others. Harmless: zeros, traffic, corrected errors, and raw errors before the correction, which are
# never zero on NVLink 5 (nvml.h, NVML_FI_DEV_NVLINK_COUNT_*). The rate 15e-255 is NVML's zero (DCGM,
# IsEffectiveBerThresholdExceeded).
/^GPU / { if (g) print "zero " z; g = 1; z = 0; print; next }
/: 0$|: 15e-255$|: [RT]x (packets|bytes): [0-9]+$/ { z++; next }
/: FEC Errors - [0-9]+: [0-9]+$|: Raw (BER|Errors) [A-Za-z0-9 ]+: [0-9]+$/ { z++; next }
NF { print }
END { if (g) print "zero " z }
