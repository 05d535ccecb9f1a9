-- Frozen: later changes are migrations of their own.

-- How often a rank was started again.
ALTER TABLE ranks ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
-- Runs that may grow, without reading all that run.
CREATE INDEX runs_elastic ON runs (id) WHERE state = 'running' AND elastic = 1;
