-- Frozen: later changes are migrations of their own.

CREATE TABLE executors (
    name TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    options TEXT NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    removed_at REAL
);

CREATE TABLE placements (
    id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL,
    project TEXT NOT NULL,
    executor TEXT NOT NULL,
    ranks INTEGER NOT NULL,
    launch_key TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at REAL NOT NULL,
    sealed TEXT,
    handle TEXT,
    launched_at REAL,
    closed_at REAL,
    tries INTEGER NOT NULL,
    try_at REAL,
    seen TEXT,
    why TEXT,
    lost INTEGER NOT NULL
);
CREATE UNIQUE INDEX placements_key ON placements (launch_key);
CREATE INDEX placements_run ON placements (run_id, created_at);
CREATE INDEX placements_open ON placements (id) WHERE state != 'closed';
