-- Frozen: later changes are migrations of their own.

-- What a lease costs in an hour, and what the leases of a run that have ended cost; NULL is unknown.
ALTER TABLE leases ADD COLUMN price_per_hour REAL;
ALTER TABLE runs ADD COLUMN cost REAL;
-- When the last event of a run was written; NULL of runs from before.
ALTER TABLE runs ADD COLUMN updated_at REAL;

-- How busy a host was, the mean of each minute, as JSON.
CREATE TABLE host_samples (
    host_id TEXT NOT NULL,
    at REAL NOT NULL,
    sample TEXT NOT NULL,
    PRIMARY KEY (host_id, at)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX host_samples_at ON host_samples (at);
