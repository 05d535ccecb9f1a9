"""Topics of announcements: a commit names one with a key, and every server hears it."""

# Key: the run's id.
TOPIC_RUN = "run"
TOPIC_LOG = "log"
# Key: the queued run's lane and place (`ready_key`).
TOPIC_READY = "ready"
# Key: the lease's id.
TOPIC_STOP = "stop"
# Key: the project.
TOPIC_QUOTA = "quota"
# What a host may take has changed. Key: its id.
TOPIC_HOST = "host"
# A token was revoked, used or shortened, so that no server may remember it as good. Key: its id.
TOPIC_TOKEN = "token"
# Ranks were assigned to a host, whose waiting claim is answered with them. Key: its id.
TOPIC_ASSIGNED = "assigned"
# An object was written or deleted. Key: its run, attempt and name (`topic_key` of its rules).
TOPIC_OBJECT = "object"
# A rank of an elastic run has no host. Key: as that of a run that is ready.
TOPIC_GROW = "grow"
