"""A Kubernetes of our own for tests: an API server, the controllers that Jobs need, a scheduler and kubelets.

It enforces the published OpenAPI schema and the rules of the API server, and runs containers' commands as
processes of this machine. `cluster.KubernetesCluster` is what a test starts.
"""

from support.kubernetes_server.cluster import KubernetesCluster, NodeShape

__all__ = ["KubernetesCluster", "NodeShape"]
