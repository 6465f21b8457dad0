"""YAML files into frozen models: clusters and hardware profiles."""

from pytest_gpucluster.config.loader import cluster_names, find_cluster, load_cluster
from pytest_gpucluster.config.models import Cluster, Profile
from pytest_gpucluster.config.profile_files import load_profile, match_profile, profile_names

__all__ = ["Cluster", "Profile", "cluster_names", "find_cluster", "load_cluster", "load_profile"]
__all__ += ["match_profile", "profile_names"]
