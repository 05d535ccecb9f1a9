"""Workers as SageMaker training jobs: one with an instance per rank, or one per rank where fewer may start.

`executor` talks to AWS through `api`; `jobs`, `instances` and `sightings` are pure. In the container
`corral.worker.on_sagemaker` starts the worker. Experimental: nobody with an account has run it yet.
"""
