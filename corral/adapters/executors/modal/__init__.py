"""Workers as Modal sandboxes, one per rank.

`executor` talks to Modal through `api`, and makes sandboxes through `creations`; `sandboxes`, `gpus` and
`sightings` are pure. Experimental: nobody with an account has run it yet.
"""
