-- Frozen: later changes are migrations of their own.

-- Objects that a run keeps over its attempts: names for blobs, which a pin of each holds.
CREATE TABLE kept_objects (
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    etag TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (run_id, key)
);
