"""AWS on this machine, as far as training jobs need it.

Every request is held to the service's own published model, as it comes with botocore: shapes, what is
required, lengths, patterns and enumerations; every signature is checked with botocore's own, and callers may
do what the policies in our documentation allow. Training jobs go through the states of the real ones, and
each instance of one is a process of this machine.
"""

from support.aws_server.server import AwsServer

__all__ = ["AwsServer"]
