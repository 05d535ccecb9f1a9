-- Frozen: later changes are migrations of their own.

ALTER TABLE tokens ADD COLUMN run_id TEXT;
ALTER TABLE tokens ADD COLUMN endpoint_id TEXT;
CREATE INDEX tokens_run ON tokens (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX tokens_endpoint ON tokens (endpoint_id, id) WHERE endpoint_id IS NOT NULL;
ALTER TABLE endpoints ADD COLUMN public INTEGER NOT NULL DEFAULT 0;

-- Which installation the database belongs to; one row. `accepted` is how many runs were ever accepted, which a
-- note outside the database is compared with; it is counted on SQLite alone.
CREATE TABLE installation (
    id TEXT NOT NULL PRIMARY KEY,
    home TEXT NOT NULL,
    created_at REAL NOT NULL,
    accepted INTEGER NOT NULL
);
