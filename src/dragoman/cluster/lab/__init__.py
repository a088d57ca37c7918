"""A lab: a cluster to rehearse with on one Linux machine, its hosts made of namespaces (docs/lab.md).

``client`` finds a lab, asks it for something, and runs commands on its hosts; ``run`` is the lab itself; ``hosts``
makes hosts and links out of ``namespaces``.
"""
