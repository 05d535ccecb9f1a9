"""Workers as the pods of Indexed Jobs, through the official client of Kubernetes.

What is made of an order is in `manifest`, `pod_template` and `names`, what is read out of the cluster in
`sightings`, `pod_ends` and `nodes`: all of them pure. `api` talks to the server, `executor` is the port.
"""
